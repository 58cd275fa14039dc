"""Answers marked in their passage: every character once, what overlaps as both."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from finetune.report.hardest import Mark, marked, pieces, shortened

marks = st.builds(Mark, st.integers(-3, 30), st.integers(-3, 30), st.sampled_from(["gold", "said"]))


def texts_of(html: str) -> str:
    return re.sub("<[^>]*>", "", re.sub('<span class="sr-only">.*?</span>', "", html))


def test_an_answer_and_the_right_one_are_marked_and_what_both_have_is_both() -> None:
    html = marked("one two three four", [Mark(4, 13, "gold"), Mark(8, 18, "said")])
    found = re.findall(r'<mark class="(\w+)"[^>]*>([^<]*)<', html)
    assert found == [("gold", "two "), ("both", "three"), ("said", " four")]
    assert "[right, and given]" in html


@given(st.integers(0, 25), st.lists(marks, max_size=5))
def test_pieces_cover_the_text_once_and_neighbours_differ(length: int, of: list[Mark]) -> None:
    found = pieces(length, of)
    assert [piece.start for piece in found[1:]] == [piece.end for piece in found[:-1]]
    if length:
        assert (found[0].start, found[-1].end) == (0, length)
    assert all(a.kind != b.kind for a, b in zip(found[:-1], found[1:], strict=True))


@given(st.text(max_size=25), st.lists(marks, max_size=4))
def test_a_short_passage_is_shown_whole_and_escaped(text: str, of: list[Mark]) -> None:
    import html as escaping

    from finetune.report.markup import plain

    assert escaping.unescape(texts_of(marked(text, of))) == escaping.unescape(
        escaping.escape(plain(text))
    )


def test_what_lies_far_from_a_mark_is_cut() -> None:
    text = "a" * 1000 + "MARK" + "b" * 1000 + "LAST" + "c" * 1000
    html = marked(text, [Mark(1000, 1004, "gold"), Mark(2004, 2008, "said")])
    shown = texts_of(html)
    assert shown.startswith("… a")
    assert shown.endswith("c …")
    assert "b … b" in shown
    assert len(shown) < 1000


def test_a_mark_outside_of_the_text_is_left_out() -> None:
    assert "<mark" not in marked("short", [Mark(3, 99, "gold")])


def test_a_long_text_is_its_beginning() -> None:
    assert shortened("a" * 20, 10) == "a" * 10 + " …"
    assert shortened("short", 10) == "short"
