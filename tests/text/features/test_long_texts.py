"""What is read of a text that is too long: by hand, and as before where nothing is too long."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.errors import ConfigError
from finetune.text.features.choices import encode_choices
from finetune.text.features.long_texts import CUT, LongConfig
from finetune.text.features.pairs import Features, collate, encode_pairs
from finetune.text.features.units import Units
from tests.made.texts import small_tokenizer

TOKENIZER = small_tokenizer()
WINDOWS = LongConfig(long="windows", stride=2)
BOTH_ENDS = LongConfig(long="head-tail")
TEXTS = ["the cat", "a dog ran to the one red cat who has it", "it"]


def ids(text: str) -> list[int]:
    return TOKENIZER.encode_ids([text])[0]


def special() -> tuple[list[int], list[int]]:
    template = TOKENIZER.template(pair=True)
    return list(template.prefix), list(template.suffix)


def rows(features: list[Features]) -> list[list[int]]:
    return [list(feature.input_ids) for feature in features]


@pytest.mark.parametrize("seconds", [None, TEXTS[::-1]])
def test_texts_that_fit_are_read_as_if_they_were_cut(seconds: list[str] | None) -> None:
    usual = encode_pairs(TOKENIZER, TEXTS, seconds, 64)
    for long in (WINDOWS, BOTH_ENDS):
        assert rows(encode_pairs(TOKENIZER, TEXTS, seconds, 64, long)) == rows(usual)
    in_windows = encode_pairs(TOKENIZER, TEXTS, seconds, 64, WINDOWS)
    assert [feature.example for feature in in_windows] == [0, 1, 2]


def test_both_ends_have_the_proportion_of_sun_et_al() -> None:
    kept = BOTH_ENDS.kept(list(range(1000)), 510)
    assert kept == [*range(128), *range(1000 - 382, 1000)]
    assert CUT.kept(list(range(1000)), 510) == list(range(510))
    (feature,) = encode_pairs(TOKENIZER, [TEXTS[1]], None, 10, BOTH_ENDS)
    (cls, sep), text = special(), ids(TEXTS[1])
    assert list(feature.input_ids) == [*cls, *text[:2], *text[-6:], *sep]
    assert feature.trimmed == len(text) - 8


def test_windows_of_a_text_overlap_and_know_their_example() -> None:
    features = encode_pairs(TOKENIZER, TEXTS, None, 7, WINDOWS)
    (cls, sep), text = special(), ids(TEXTS[1])
    starts = range(0, len(text) - 5 + 3, 3)
    of_second = [row for row, f in zip(rows(features), features, strict=True) if f.example == 1]
    assert of_second == [[*cls, *text[start : start + 5], *sep] for start in starts]
    assert not any(feature.trimmed for feature in features)


def test_what_is_behind_the_last_window_allowed_counts_as_cut() -> None:
    config = LongConfig(long="windows", stride=2, max_windows=2)
    features = encode_pairs(TOKENIZER, TEXTS, None, 7, config)
    text = ids(TEXTS[1])
    assert [feature.example for feature in features] == [0, 1, 1, 2]
    assert [feature.trimmed for feature in features] == [0, len(text) - 8, 0, 0]


@pytest.mark.parametrize("swapped", [False, True])
def test_the_longer_text_of_a_pair_has_windows_beside_the_whole_other(swapped: bool) -> None:
    pair = (TEXTS[1], TEXTS[0])[:: -1 if swapped else 1]
    features = encode_pairs(TOKENIZER, [pair[0]], [pair[1]], 12, WINDOWS)
    text, other = ids(TEXTS[1]), ids(TEXTS[0])
    (cls, sep), middle = special(), list(TOKENIZER.template(pair=True).middle)
    space = 12 - len(cls) - len(sep) - len(middle) - len(other)
    pieces = [text[start : start + space] for start in range(0, len(text) - 2, space - 2)]
    expected = [
        [*cls, *(other if swapped else piece), *middle, *(piece if swapped else other), *sep]
        for piece in pieces
    ]
    assert rows(features) == expected


def test_two_long_texts_share_a_window_and_the_shorter_one_is_cut() -> None:
    long, longer = TEXTS[1], f"{TEXTS[1]} {TEXTS[1]}"
    features = encode_pairs(TOKENIZER, [long], [longer], 15, WINDOWS)
    assert all(len(feature.input_ids) <= 15 for feature in features)
    assert {tuple(list(feature.input_ids)[1:7]) for feature in features} == {tuple(ids(long)[:6])}
    assert features[0].trimmed == len(ids(long)) - 6


def test_options_have_the_same_windows_of_a_passage() -> None:
    options = [["who", "the red cat", None], ["a", "it", "to"]]
    features = encode_choices(TOKENIZER, [TEXTS[1], "it"], options, 12, WINDOWS)
    owners = [feature.example for feature in features]
    count = owners.count(0) // 3
    assert count > 1
    assert owners == [0] * 3 * count + [1] * 3
    passage, longest = ids(TEXTS[1]), len(ids("the red cat"))
    space = 12 - TOKENIZER.template(pair=True).size - longest
    for window in range(count):
        start = window * (space - 2)
        piece = passage[start : start + space]
        first, second, absent = rows(features)[3 * window : 3 * window + 3]
        assert first[1 : 1 + len(piece)] == second[1 : 1 + len(piece)] == piece
        assert absent == []
    usual = encode_choices(TOKENIZER, ["it"], [["a", "it", "to"]], 12)
    assert rows(features[-3:]) == rows(usual)


def test_a_passage_without_space_beside_an_option_is_cut() -> None:
    options = [["who", f"{TEXTS[1]} {TEXTS[0]}"]]
    features = encode_choices(TOKENIZER, [TEXTS[1]], options, 16, WINDOWS)
    assert rows(features) == rows(encode_choices(TOKENIZER, [TEXTS[1]], options, 16))
    assert features[1].trimmed > 0


@pytest.mark.parametrize(
    ("seconds", "max_length", "message"),
    [
        (None, 34, r"stride \(32\) must be less than .*: 32 with max_length 34; lower stride"),
        (TEXTS, 60, r"stride \(32\) must be less than .*: 29 with max_length 60"),
    ],
)
def test_windows_that_would_not_move_on_are_refused(
    seconds: list[str] | None, max_length: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        encode_pairs(TOKENIZER, TEXTS, seconds, max_length, LongConfig(long="windows"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"long": "window"}, "long must .* cut, head-tail, windows, got 'window'; did you mean"),
        ({"window_labels": "document"}, "expected --long windows, got --long cut"),
        ({"long": "windows", "window_labels": "text"}, "window_labels must be one .*, got 'text'"),
        ({"max_windows": 0}, "max_windows"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LongConfig(**settings)  # type: ignore[arg-type]


def test_windows_that_are_read_together_are_one_unit() -> None:
    features = encode_pairs(TOKENIZER, TEXTS, None, 7, WINDOWS)
    counts = np.bincount([int(feature.example or 0) for feature in features])
    units = Units.of(features, 1, together=True)
    assert len(units) == 3
    assert np.diff(units.starts).tolist() == counts.tolist()
    first_two = np.arange(counts[:2].sum())
    assert units.rows(np.array([0, 1])).tolist() == first_two.tolist()
    lengths = np.array([len(feature.input_ids) for feature in features])
    assert units.sizes(lengths)[1] == sum(lengths[counts[0] : counts[:2].sum()])
    batch = collate(features, [2, 1], 0, starts=units.starts)
    assert batch["rows"].tolist() == [len(features) - 1, *range(1, 1 + counts[1])]
    assert batch["window_of"].tolist() == [0] + [1] * counts[1]
    assert "window_of" not in collate(features, [2, 0], 0, starts=units.starts)


def test_windows_of_options_say_which_option_each_is_of() -> None:
    options = [["who", "the red cat", None], ["a", "it", "to"]]
    features = encode_choices(TOKENIZER, [TEXTS[1], "it"], options, 12, WINDOWS)
    for feature in features:
        feature.label = 0
    units = Units.of(features, 3, together=True)
    count = (len(features) - 3) // 3
    batch = collate(features, [1, 0], 0, rows=3, starts=units.starts)
    assert batch["window_of"].tolist() == [0, 1, 2, *[3, 4, 5] * count]
    assert batch["choices"].tolist() == [[True] * 3, [True, True, False]]
