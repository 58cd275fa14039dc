from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.errors import ConfigError
from finetune.task.answers.spans import span_answers
from finetune.task.interface import Example
from finetune.text.features.files import load_features, save_features
from finetune.text.features.pairs import Features
from finetune.text.features.windows import (
    WindowConfig,
    answer_tokens,
    cut,
    encode_windows,
    without_space,
)
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tests.made.official import official_text

QUESTION = "bade fi, golu?"
CONTEXT = "Sil ta vo mar nera. Bade fi golu, ponra! " * 6
ODD = [
    "",
    "   ",
    "\n\t",
    "naïve café — ÀÉÎ 日本語 漢字 123",
    "😀 emoji 👩‍👩‍👧 family 🇫🇷 bade",
    "שלום עולם مرحبا بالعالم bade",
    "a\u0301 combining e\u0301\u0302 \u200b zero \u00ad soft",
    "x" * 300 + " mar",
    "İstanbul ß ﬁ ΑΣ",
    "nul \x00 unit \x1f next \x85 done \ufeff",
    "[SEP] and [MASK] in the text",
]
odd_texts = st.one_of(
    st.sampled_from(ODD),
    st.text(st.sampled_from("abde  \n'-éﬁ漢😀\u0301שم\u200b\u3000"), max_size=60),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)


def small(**changes: Any) -> WindowConfig:
    return replace(WindowConfig(stride=4, max_question_length=8), **changes)


def windows(
    tokenizer: Tokenizer,
    question: str,
    context: str,
    max_length: int = 24,
    config: WindowConfig | None = None,
    **options: Any,
) -> list[Features]:
    options = {"answers": None, "training": False, "drop": False} | options
    return encode_windows(
        tokenizer, [question], [context], max_length, config or small(), **options
    )


def tokens_in(window: Features) -> list[int]:
    assert window.context is not None
    return window.input_ids[slice(*window.context)]


def offsets_in(window: Features) -> list[list[int]]:
    assert window.offsets is not None
    return window.offsets.tolist()


def slow_pieces(tokens: Sequence[int], room: int, stride: int) -> list[Sequence[int]]:
    """Take tokens until they do not fit, go back by the stride, and again."""
    pieces, start = [], 0
    while True:
        pieces.append(tokens[start : start + room])
        if start + room >= len(tokens):
            return pieces
        start = start + room - stride


@settings(deadline=None)
@given(st.integers(0, 80), st.integers(1, 20), st.data())
def test_pieces_are_those_of_a_slow_reading(count: int, room: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(0, room - 1))
    found = [list(range(*piece)) for piece in cut(count, room, stride)]
    assert found == slow_pieces(list(range(count)), room, stride)
    assert sorted({token for piece in found for token in piece}) == list(range(count))
    for before, after in zip(found, found[1:], strict=False):
        assert len(set(before) & set(after)) == stride


@pytest.mark.parametrize("max_length", [18, 24, 64])
def test_windows_are_those_of_a_slow_reading(tokenizer: Tokenizer, max_length: int) -> None:
    question = tokenizer.encode_ids([QUESTION])[0][:8]
    context = tokenizer.encode_ids([CONTEXT])[0]
    room = max_length - len(question) - 3
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    found = windows(tokenizer, QUESTION, CONTEXT, max_length)
    pieces = slow_pieces(context, room, stride=4)
    assert [w.input_ids for w in found] == [[cls, *question, sep, *piece, sep] for piece in pieces]
    for window, piece in zip(found, pieces, strict=True):
        first = len(question) + 2
        assert window.context == (first, first + len(piece))
        assert window.token_type_ids == [0] * first + [1] * (len(piece) + 1)
        assert len(window.input_ids) <= max_length
    assert len(found) > 1


def test_windows_are_those_of_transformers(minilm: Path) -> None:
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(minilm)(
        QUESTION, CONTEXT, truncation="only_second", max_length=40, stride=9,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    found = windows(
        Tokenizer.load(minilm),
        QUESTION,
        CONTEXT,
        40,
        WindowConfig(stride=9, max_question_length=20),
    )
    assert [window.input_ids for window in found] == expected["input_ids"]
    assert [window.token_type_ids for window in found] == expected["token_type_ids"]
    for number, window in enumerate(found):
        pairs = zip(expected["offset_mapping"][number], expected.sequence_ids(number), strict=True)
        assert offsets_in(window) == [list(pair) for pair, text in pairs if text == 1]


def test_windows_of_a_roberta_tokenizer_have_its_special_tokens(roberta: Path) -> None:
    tokenizer = Tokenizer.load(roberta)
    first, *_ = found = windows(tokenizer, "some text", "and some more text " * 4)
    start = first.context[0] if first.context else 0
    assert first.input_ids[start - 2 : start] == [tokenizer.sep_token_id] * 2
    assert all(window.input_ids[0] == tokenizer.cls_token_id for window in found)
    assert {kind for window in found for kind in window.token_type_ids} == {0}


@settings(deadline=None, max_examples=200)
@given(odd_texts, odd_texts, st.integers(16, 40))
def test_any_text_becomes_windows_that_lead_back_to_it(
    tokenizer: Tokenizer, question: str, context: str, max_length: int
) -> None:
    (whole,) = tokenizer.encode_batch([context])
    found = windows(tokenizer, question, context, max_length)
    asked = tokenizer.encode_ids([question])[0]
    assert found[0].trimmed == max(0, len(asked) - 8)
    rebuilt: list[int] = []
    for number, window in enumerate(found):
        assert window.context is not None
        assert window.offsets is not None
        first, end = window.context
        assert window.input_ids[1 : first - 1] == asked[:8]
        assert window.offsets.dtype == np.int32
        assert window.offsets.shape == (end - first, 2)
        begin = max(0, len(rebuilt) - 4) if number else 0
        assert tokens_in(window) == whole.ids[begin : begin + end - first]
        for (start, stop), (low, high) in zip(
            offsets_in(window), whole.offsets[begin:], strict=False
        ):
            assert context[start:stop] == context[low:high].strip()
        rebuilt = rebuilt[:begin] + tokens_in(window)
    assert rebuilt == whole.ids


@settings(deadline=None, max_examples=100)
@given(odd_texts.filter(bool), st.data())
def test_labelled_tokens_cover_the_answer(
    tokenizer: Tokenizer, context: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    (window,) = windows(tokenizer, QUESTION, context, 700, answers=[(start, end)])
    touched = {place for low, high in offsets_in(window) for place in range(low, high)}
    wanted = touched & set(range(start, end))  # a tokenizer drops some characters, such as spaces
    assert (window.label != (0, 0)) == bool(wanted)
    if wanted:
        assert isinstance(window.label, tuple)
        assert window.context is not None
        first, last = (place - window.context[0] for place in window.label)
        covered = offsets_in(window)[first : last + 1]
        assert wanted <= {place for low, high in covered for place in range(low, high)}
        assert covered[0][1] > start  # and not a token more at either end
        assert covered[-1][0] < end


def test_each_window_that_holds_the_whole_answer_is_labelled(wordpiece: Tokenizer) -> None:
    start = CONTEXT.index("golu")
    answer = (start, start + len("golu, pon"))  # ends inside a word
    found = windows(wordpiece, QUESTION, CONTEXT, answers=[answer])
    held = 0
    for window in found:
        assert window.context is not None
        assert isinstance(window.label, tuple)
        offsets = offsets_in(window)
        whole = offsets[0][0] <= answer[0] and answer[1] <= offsets[-1][1]
        assert (window.label != (0, 0)) == whole
        held += whole
        if whole:
            first, last = (place - window.context[0] for place in window.label)
            assert CONTEXT[offsets[first][0] : offsets[last][1]].startswith("golu, pon")
    assert 0 < held < len(found)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_windows_without_the_answer_go_by_choice(
    wordpiece: Tokenizer, training: bool, drop: bool
) -> None:
    answers = [(0, 3), None]
    found = encode_windows(
        wordpiece, [QUESTION] * 2, [CONTEXT] * 2, 24, small(),
        answers=answers, training=training, drop=drop,
    )  # fmt: skip
    first, second = ([w.label for w in found if w.example == number] for number in range(2))
    count = len(windows(wordpiece, QUESTION, CONTEXT))
    absent = (-100, -100) if drop else (0, 0)
    assert first[0] not in (absent, (0, 0))
    assert first[1:] == ([] if drop and training else [absent] * (count - 1))
    assert second == [(0, 0)] * count
    assert all((window.offsets is None) == training for window in found)


def test_without_answers_there_is_no_label(wordpiece: Tokenizer) -> None:
    assert {window.label for window in windows(wordpiece, QUESTION, CONTEXT)} == {None}


@pytest.mark.parametrize("drop", [True, False])
def test_a_question_that_is_too_long_is_trimmed_and_counted_once(
    wordpiece: Tokenizer, drop: bool
) -> None:
    question = "bade fi golu " * 9
    ids = wordpiece.encode_ids([question])[0]
    start = CONTEXT.rindex("ponra")
    found = windows(
        wordpiece, question, CONTEXT, answers=[(start, start + 5)], training=True, drop=drop
    )
    assert [window.trimmed for window in found] == [len(ids) - 8] + [0] * (len(found) - 1)
    assert all(window.input_ids[1:9] == ids[:8] for window in found)


def test_windows_stand_in_the_order_of_their_examples(wordpiece: Tokenizer) -> None:
    contexts = [CONTEXT, "", "mar", CONTEXT]
    found = encode_windows(
        wordpiece, [QUESTION] * 4, contexts, 24, small(), answers=None, training=False, drop=True
    )
    count = len(windows(wordpiece, QUESTION, CONTEXT))
    assert [window.example for window in found] == [0] * count + [1, 2] + [3] * count
    empty = found[count]
    assert empty.context is not None
    assert empty.context[0] == empty.context[1]
    assert empty.offsets is not None
    assert empty.offsets.shape == (0, 2)


def test_a_context_that_repeats_is_tokenized_once(
    wordpiece: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    encode_batch = Tokenizer.encode_batch

    def listen(self: Tokenizer, texts: Sequence[str]) -> Any:
        seen.extend(texts)
        return encode_batch(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", listen)
    contexts = ["mar", CONTEXT, "mar", "mar"]
    encode_windows(
        wordpiece, [QUESTION] * 4, contexts, 24, small(), answers=None, training=False, drop=True
    )
    assert seen == ["mar", CONTEXT]


def test_a_hundred_thousand_characters_are_cut_in_moments(wordpiece: Tokenizer) -> None:
    context = (CONTEXT * 500)[:100_000] + " nera"
    answer = (len(context) - 4, len(context))
    found = windows(wordpiece, "mar " * 25_000, context, 384, WindowConfig(), answers=[answer])
    assert [window.label != (0, 0) for window in found] == [False] * (len(found) - 1) + [True]
    assert offsets_in(found[-1])[-1][1] == len(context)


def test_no_questions_make_no_windows(wordpiece: Tokenizer) -> None:
    assert encode_windows(
        wordpiece, [], [], 24, small(), answers=[], training=True, drop=True
    ) == []  # fmt: skip


def test_white_space_around_a_token_is_left_out() -> None:
    text = " ab\u3000 c "
    offsets = np.array([[0, 3], [3, 6], [3, 5], [6, 7], [7, 7]], dtype=np.int32)
    found = without_space(text, offsets)
    assert found.tolist() == [[1, 3], [5, 6], [5, 5], [7, 7], [7, 7]]
    assert found.dtype == np.int32


def test_tokens_that_share_one_character_all_belong_to_the_answer() -> None:
    offsets = np.array([[0, 1], [1, 2], [1, 2], [1, 2], [3, 4]], dtype=np.int32)
    assert answer_tokens(offsets, (1, 2)) == (1, 3)
    assert answer_tokens(offsets, (1, 4)) == (1, 4)
    assert answer_tokens(offsets, (2, 3)) is None
    assert answer_tokens(np.array([[0, 0], [2, 2]], dtype=np.int32), (0, 3)) is None


@pytest.mark.parametrize("training", [True, False])
def test_windows_are_the_same_when_read_back_from_their_file(
    wordpiece: Tokenizer, training: bool, tmp_path: Path
) -> None:
    written = encode_windows(
        wordpiece, [QUESTION] * 3, ["mar", "", CONTEXT], 24, small(),
        answers=[(0, 2), None, (4, 5)], training=training, drop=False,
    )  # fmt: skip
    save_features(written, tmp_path / "windows.npz")
    read = load_features(tmp_path / "windows.npz")
    assert read is not None
    for ours, theirs in zip(read, written, strict=True):
        assert replace(ours, offsets=None) == replace(theirs, offsets=None)
        assert (ours.offsets is None) == (theirs.offsets is None) == training
        if ours.offsets is not None:
            assert ours.offsets.dtype == np.int32
            assert offsets_in(ours) == offsets_in(theirs)


@pytest.mark.parametrize(
    ("choice", "unanswerable", "drops"),
    [("auto", False, True), ("auto", True, False), ("cls", False, False), ("drop", True, True)],
)
def test_what_auto_means_goes_by_the_data(choice: str, unanswerable: bool, drops: bool) -> None:
    assert WindowConfig(without_answer=choice).drops(unanswerable=unanswerable) == drops


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": -1}, "stride must be a whole number from 0 to 1,000,000, got -1"),
        (
            {"max_question_length": 0},
            "max_question_length must be a whole number from 1 to 1,000,000, got 0",
        ),
        ({"without_answer": "dorp"}, "one of auto, cls, drop, got 'dorp'; did you mean 'drop'"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        WindowConfig(**settings)


def test_a_stride_without_room_to_go_on_is_named(wordpiece: Tokenizer) -> None:
    message = (
        "stride (128) must be less than the tokens of a context that fit into a window: "
        "max_length 128 less max_question_length 64 and 3 special tokens leaves 61; lower"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        windows(wordpiece, QUESTION, CONTEXT, 128, WindowConfig())
    assert windows(wordpiece, QUESTION, CONTEXT, 16)
    with pytest.raises(ConfigError, match="leaves 4"):
        windows(wordpiece, QUESTION, CONTEXT, 15)


class Asked(NamedTuple):
    """A question of an official file."""

    id: str
    question: str
    context: str
    answers: list[tuple[str, int]]


def official(file: str) -> Iterator[Asked]:
    for article in json.loads(official_text(f"squad/{file}"))["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                answers = [(answer["text"], answer["answer_start"]) for answer in row["answers"]]
                yield Asked(row["id"], row["question"], paragraph["context"], answers)


def normalised(text: str) -> str:
    """As the official evaluation compares texts."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def learned(request: pytest.FixtureRequest) -> Tokenizer:
    texts = sorted({row.context for row in official("dev-v1.1.json")})
    return train_tokenizer(texts, TokenizerConfig(algorithm=request.param, vocab_size=4000))


def cause_of_loss(start: int, end: int, found: str) -> str:
    """Why a label's text is not the answer's."""
    if len(found) > end - start:
        return "the answer begins or ends inside a token"
    return "a character at an end is in no token"


@pytest.mark.data
def test_labels_of_a_real_file_lead_back_to_its_answers(learned: Tokenizer) -> None:
    rows = list(official("dev-v1.1.json"))
    ends = [(row.answers[0][1], row.answers[0][1] + len(row.answers[0][0])) for row in rows]
    found = encode_windows(
        learned, [row.question for row in rows], [row.context for row in rows], 384,
        WindowConfig(), answers=ends, training=False, drop=True,
    )  # fmt: skip
    held: dict[int, set[str]] = {}
    outputs = np.full((len(found), 2, 3), (-1, -1, -np.inf), dtype=np.float32)
    outputs[:, 0] = 0
    for window, row in zip(found, outputs, strict=True):
        if window.label == (-100, -100):
            continue
        assert window.example is not None
        assert window.context is not None
        assert window.offsets is not None
        assert isinstance(window.label, tuple)
        first, last = (place - window.context[0] for place in window.label)
        context = rows[window.example].context
        text = context[window.offsets[first, 0] : window.offsets[last, 1]]
        held.setdefault(window.example, set()).add(text)
        row[1] = (*window.label, 1)  # what a head says that is right
    examples = [Example(row.id, (row.question, row.context)) for row in rows]
    answers = span_answers(outputs, examples, found, n_best=1, allow_null=False)
    causes: dict[str, list[str]] = {}
    for number, texts in held.items():
        gold = {normalised(text) for text, _ in rows[number].answers}
        (text,) = texts  # the same one in each window that holds it
        assert answers[number]["prediction"] == text
        if normalised(text) not in gold:
            cause = cause_of_loss(*ends[number], text)
            causes.setdefault(cause, []).append(f"{rows[number].id} ({text})")
    lost = sum(map(len, causes.values()))
    summary = f"{len(held)} of {len(rows)} answers lie in a window; {lost} not led back: {causes}"
    print(summary)
    assert len(rows) == 10_570
    assert len(held) >= 0.995 * len(rows), summary
    assert lost <= 0.005 * len(held), summary
