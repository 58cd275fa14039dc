from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from finetune.errors import ConfigError, DataError
from finetune.text.corpus.corpus import CorpusConfig, build_corpus
from finetune.text.features.pairs import encode_pairs
from finetune.text.tokenizer.tokenizer import Tokenizer, is_empty
from finetune.text.tokenizer.unknown import UnknownTexts, cause
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

THAI = ["แมวกินปลา", "วันนี้อากาศดี", "ฉันชอบอ่านหนังสือ", "หมาวิ่งเร็ว"]
EMPTY = ["", " \n", "\u200b", "\ufeff", "\u00ad", "\0", "\x07", "\u200d\u200d", "\u2060", "\u202e"]


def thai(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(THAI, k=12)) for _ in range(count)]  # some 150 characters


def unknown_texts(tokenizer: Tokenizer, texts: list[str]) -> UnknownTexts:
    counted = UnknownTexts(tokenizer)
    features = encode_pairs(tokenizer, texts, None, 128)
    counted.add(enumerate(features), [(text,) for text in texts])
    return counted


@pytest.fixture(scope="module")
def english(texts: list[str]) -> Tokenizer:
    return train_tokenizer(texts, TokenizerConfig(vocab_size=150, min_frequency=1))


@pytest.mark.parametrize("lowercase", [True, False])
def test_script_without_spaces_does_not_vanish(lowercase: bool) -> None:
    config = TokenizerConfig(vocab_size=110, lowercase=lowercase)
    tokenizer = train_tokenizer(thai(0, 80), config)
    for text in [*thai(1, 5), "แมว😀" + thai(2, 1)[0], THAI[0] * 50]:
        (encoding,) = tokenizer.encode_batch([text])
        assert len(encoding.ids) > len(text) / 30
        assert encoding.ids.count(tokenizer.unk_token_id) == text.count("😀")
        assert [start for start, _ in encoding.offsets] == sorted({*dict(encoding.offsets)})
    assert not unknown_texts(tokenizer, thai(1, 5)).unknown


def test_long_word_is_split_and_every_other_text_is_as_before(english: Tokenizer) -> None:
    import copy

    berts = copy.deepcopy(english.backend)
    berts.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    before = Tokenizer(berts, english.special_tokens)
    long = "bade" * 100
    assert before.encode_ids([long]) == [[before.unk_token_id]]
    assert english.unk_token_id not in english.encode_ids([long])[0]
    for text in ["bade fi, golu (mar) naïve 日本語 x" + "a" * 80, "e\u0301" * 30, ""]:
        assert english.encode_batch([text]) == before.encode_batch([text])
    assert unknown_texts(before, [long]).unknown == 1
    assert cause(before, [long]).startswith("words of more than 100 characters are not split (the")


@given(st.text(max_size=40))
def test_every_text_is_as_bert_splits_it(english: Tokenizer, text: str) -> None:
    bert = pre_tokenizers.BertPreTokenizer()
    if not any("\u0e00" <= c <= "\u0eff" or "\u1000" <= c <= "\u17ff" for c in text):
        splitter: Any = english.backend.pre_tokenizer
        assert splitter.pre_tokenize_str(text) == bert.pre_tokenize_str(text)


def test_texts_in_a_foreign_script_are_told_with_the_cause(english: Tokenizer) -> None:
    counted = unknown_texts(english, [*thai(0, 3), "bade fi golu"])
    (message,) = counted.warnings()
    assert message.startswith("3 of 4 texts (75%) are mostly [UNK] to this tokenizer")
    assert "of their characters are not in the vocabulary (Thai: " in message
    assert not unknown_texts(english, ["bade fi golu", "bade ก fi golu ta vo"]).warnings()


@pytest.mark.parametrize("text", EMPTY)
def test_text_without_a_visible_character_is_empty(text: str, english: Tokenizer) -> None:
    assert is_empty(text)
    assert english.encode_ids([text]) == [[]]
    assert unknown_texts(english, [text, "bade"]).empty == 1


def test_characters_beyond_the_alphabet_are_told_where_a_tokenizer_is_trained() -> None:
    rng = random.Random(0)
    han = [chr(0x4E00 + rng.randrange(60)) for _ in range(3000)]
    corpus = ["".join(han[start : start + 20]) for start in range(0, 3000, 20)]
    with pytest.warns(UserWarning, match=r"become \[UNK\]: limit_alphabet keeps 40 of 60 diff"):
        train_tokenizer(corpus, TokenizerConfig(vocab_size=45, limit_alphabet=40))
    with pytest.raises(ConfigError, match="or raise limit_alphabet, which keeps 40 of 60 letters"):
        train_tokenizer(corpus, TokenizerConfig(vocab_size=50, limit_alphabet=40))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_tokenizer(corpus, TokenizerConfig(vocab_size=65))


def test_corpus_that_is_partly_unknown_is_told_and_a_wholly_unknown_one_refused(
    english: Tokenizer, tmp_path: Path
) -> None:
    config = CorpusConfig(max_length=16, validation_fraction=0)
    mixed, foreign = tmp_path / "mixed.txt", tmp_path / "thai.txt"
    plain = ["bade fi golu mar sil ta vo"] * 20
    mixed.write_text("\n\n".join([*thai(0, 10), *plain]), encoding="utf-8")
    foreign.write_text("\n\n".join(thai(0, 40)), encoding="utf-8")
    statistics = build_corpus([mixed], english, config, 0, tmp_path / "cache").statistics
    assert statistics.unknown_documents == 10
    (message,) = statistics.warnings()
    assert "10 of 30 documents are mostly so: " in message
    assert "characters are not in the vocabulary (Thai: " in message
    with pytest.raises(DataError, match=r"thai.txt: every word is unknown to the tokenizer"):
        build_corpus([foreign], english, config, 0, tmp_path / "cache")


def test_empty_documents_are_counted_whatever_the_tokenizer_makes_of_them(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(["\u200b", "\u00ad", *["bade fi golu"] * 30]), encoding="utf-8")
    config = CorpusConfig(max_length=8, validation_fraction=0)
    statistics = build_corpus([path], tokenizer, config, 0, tmp_path / "cache").statistics
    assert (statistics.documents, statistics.empty_documents) == (30, 2)
