from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.errors import ConfigError
from finetune.text.features.choices import encode_choices
from finetune.text.features.pairs import collate
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

WORDS = "the cat sat on a mat and saw one red dog who ran to it".split()
WORDPIECE = train_tokenizer([" ".join(WORDS)] * 3, TokenizerConfig(vocab_size=50, min_frequency=1))
ODD = st.text(max_size=60) | st.sampled_from(
    [
        "",
        "   ",
        "\u200b",
        "🙂🏽",
        "שלום עולם",
        "e\u0301\u0302",
        "\x00",
        "a\u2028b",
        "漢字かな",
        "\ufeff",
    ]
)


def parts(tokenizer: Tokenizer, ids: list[int], types: list[int]) -> tuple[list[int], list[int]]:
    """The tokens of the passage and those of the question with its option."""
    template = tokenizer.template(pair=True)
    split = types.index(1)
    assert ids[: len(template.prefix)] == template.prefix
    assert ids[split - len(template.middle) : split] == template.middle
    assert ids[-len(template.suffix) :] == template.suffix
    first = ids[len(template.prefix) : split - len(template.middle)]
    return first, ids[split : -len(template.suffix)]


def test_a_sequence_is_passage_then_question_with_option(wordpiece: Tokenizer) -> None:
    features = encode_choices(wordpiece, ["bade fi"], [["golu", "mar"]], 32)
    cls, sep = wordpiece.cls_token_id, wordpiece.sep_token_id
    passage, *seconds = wordpiece.encode_ids(["bade fi", "golu", "mar"])
    assert [f.input_ids for f in features] == [[cls, *passage, sep, *s, sep] for s in seconds]
    ones = [len(second) + 1 for second in seconds]
    zeros = len(passage) + 2
    assert [f.token_type_ids for f in features] == [[0] * zeros + [1] * one for one in ones]
    assert all(f.label is None and f.trimmed == 0 for f in features)


def test_roberta_has_its_own_special_tokens(roberta: object) -> None:
    tokenizer = Tokenizer.load(str(roberta))
    (feature,) = encode_choices(tokenizer, ["some"], [["more"]], 32)
    first, second = tokenizer.encode_ids(["some", "more"])
    bos, eos = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert feature.input_ids == [bos, *first, eos, eos, *second, eos]
    assert set(feature.token_type_ids) == {0}


def test_features_come_option_by_option_question_by_question() -> None:
    passages, seconds = ["the cat", "a dog"], [["one", "red", "mat"], ["who", "ran", "it"]]
    features = encode_choices(WORDPIECE, passages, seconds, 32)
    found = [WORDPIECE.decode(feature.input_ids) for feature in features]
    assert found == [
        "the cat one",
        "the cat red",
        "the cat mat",
        "a dog who",
        "a dog ran",
        "a dog it",
    ]


def test_the_passage_alone_is_trimmed_from_its_end() -> None:
    passage = " ".join(WORDS)
    features = encode_choices(WORDPIECE, [passage], [["one", "red dog ran"]], 10)
    found = [parts(WORDPIECE, f.input_ids, f.token_type_ids) for f in features]
    assert [WORDPIECE.decode(first) for first, _ in found] == [
        "the cat sat on a mat",
        "the cat sat on",
    ]
    assert [WORDPIECE.decode(second) for _, second in found] == ["one", "red dog ran"]
    count = len(WORDPIECE.encode_ids([passage])[0])
    assert [f.trimmed for f in features] == [count - 6, count - 4]


def test_a_question_longer_than_the_room_leaves_no_passage_and_loses_its_own_end() -> None:
    (feature,) = encode_choices(WORDPIECE, ["the cat"], [["one red dog ran to it"]], 7)
    first, second = parts(WORDPIECE, feature.input_ids, feature.token_type_ids)
    assert (first, WORDPIECE.decode(second)) == ([], "one red dog ran")
    assert feature.trimmed == 4


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(ODD, ODD, ODD, ODD), min_size=1, max_size=4),
    st.integers(min_value=5, max_value=40),
)
def test_nothing_is_lost_but_the_passages_end(
    questions: list[tuple[str, ...]], max_length: int
) -> None:
    passages, seconds = [q[0] for q in questions], [q[1:] for q in questions]
    features = encode_choices(WORDPIECE, passages, seconds, max_length)
    assert len(features) == 3 * len(questions)
    room = max_length - 3
    for number, feature in enumerate(features):
        texts = passages[number // 3], seconds[number // 3][number % 3]
        whole, option = WORDPIECE.encode_ids(texts)
        first, second = parts(WORDPIECE, feature.input_ids, feature.token_type_ids)
        assert len(feature.input_ids) == len(feature.token_type_ids) <= max_length
        assert second == option[:room]
        assert first == whole[: room - len(second)]
        assert feature.trimmed == len(whole) + len(option) - len(first) - len(second)
        assert not feature.trimmed or len(feature.input_ids) == max_length
    assert encode_choices(WORDPIECE, passages, seconds, max_length) == features


def test_a_question_is_encoded_as_if_it_were_alone(tokenizer: Tokenizer, texts: list[str]) -> None:
    chance = random.Random(0)
    passages = [chance.choice(texts[:20]) for _ in range(30)]
    seconds = [chance.sample(texts, 4) for _ in range(30)]
    together = encode_choices(tokenizer, passages, seconds, 48)
    alone = [
        feature
        for passage, options in zip(passages, seconds, strict=True)
        for feature in encode_choices(tokenizer, [passage], [options], 48)
    ]
    assert together == alone
    assert any(feature.trimmed for feature in together)


def test_a_passage_that_comes_again_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    encode = WORDPIECE.encode_ids
    monkeypatch.setattr(
        WORDPIECE, "encode_ids", lambda texts: (asked.extend(texts), encode(texts))[1]
    )
    encode_choices(WORDPIECE, ["the cat", "a dog", "the cat"], [["it", "who"]] * 3, 16)
    assert asked.count("the cat") == 1


def test_texts_without_tokens_and_very_long_ones_simply_work() -> None:
    long = "the cat " * 12_500
    assert len(long) == 100_000
    features = encode_choices(
        WORDPIECE, ["", long, "\u200b"], [["", ""], ["it", long], [" ", "a"]], 32
    )
    assert [len(feature.input_ids) for feature in features] == [3, 3, 32, 32, 3, 4]
    batch = collate(features, [0, 1, 2], WORDPIECE.pad_token_id, rows=2)
    assert batch["input_ids"].shape == (6, 32)


def test_no_questions_give_no_features() -> None:
    assert encode_choices(WORDPIECE, [], [], 16) == []


@pytest.mark.parametrize("max_length", [0, 3, 4])
def test_no_room_for_text_is_an_error(max_length: int) -> None:
    with pytest.raises(
        ConfigError,
        match=f"max_length {max_length} leaves no space for text: 3 tokens",
    ):
        encode_choices(WORDPIECE, ["a"], [["b"]], max_length)
