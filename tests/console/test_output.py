from __future__ import annotations

import json

import pytest

from finetune.console.output import are, counted, one_line, printable, put, quoted

EVIL = "\x1b[2J\x07\x9b1m\u202egnp.exe\ud800\u2028"


def test_control_characters_are_escapes_and_other_signs_stay() -> None:
    assert printable(EVIL) == (r"\u001b[2J\u0007\u009b1m\u202egnp.exe\ud800\u2028")
    for text in ("naïve 漢字 עברית 👨‍👩‍👧", "a\tb\nc", "it's 50 %"):
        assert printable(text) == text
    assert printable("a\tb\n", lines=False) == r"a\u0009b\u000a"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 texts are"), (1, "1 text is"), (2, "2 texts are"), (1234, "1,234 texts are")],
)
def test_one_is_in_the_singular(number: int, text: str) -> None:
    assert f"{counted(number, 'text')} {are(number)}" == text


def test_json_that_was_shown_is_read_back_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    put(json.dumps({EVIL: EVIL}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert out.rstrip("\n").isprintable()
    assert json.loads(out) == {EVIL: EVIL}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "none"),
        (True, "true"),
        (1.0, "1.0"),
        ("a\x1b", r"'a\x1b'"),
        ([1, "b"], "[1, 'b']"),
        (-(10**1000), "about -1e1000"),
        ("x" * 300, repr("x" * 200 + "…")),
    ],
)
def test_a_value_is_quoted_in_a_bounded_way(value: object, shown: str) -> None:
    assert quoted(value) == shown


def test_a_quoted_container_is_bounded() -> None:
    nested: list[object] = ["x" * 1000] * 1000
    for _ in range(50):
        nested = [nested, nested]  # as text some 10**21 characters
    assert len(quoted(nested)) < 250


def test_a_message_is_one_line_and_its_quotations_are_cut() -> None:
    line = one_line(f"expected the encoder's name,\n got '{'y' * 999}'; the run's is \x1b 'a'")
    assert line == (f"expected the encoder's name, got '{'y' * 200}…'; the run's is \\u001b 'a'")
    assert one_line("z" * 5000) == "z" * 200 + "…"
    assert len(one_line("word " * 5000)) < 2100


def test_apostrophes_do_not_begin_a_quotation() -> None:
    text = f"the encoder's {'words and ' * 40} the tokenizer's"
    assert one_line(text) == " ".join(text.split())
