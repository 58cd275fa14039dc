from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.text.tokenizer import word_cache
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.word_cache import WordCache, word_cut

WORDS = ["bade", "Fi,", "go-lu", "(mar)", "don't", "naïve", "日本", "😀", "[MASK]", "x" * 120]
SPACES = [" ", "  ", "\n", " \n", "\t", "\u00a0", "\u2003", "\x0b", "\x1f", "\x85", ""]
TEXT = st.lists(st.sampled_from([*WORDS, *SPACES, " ", " "]), max_size=30).map("".join)


def assert_same_as_whole(tokenizer: Tokenizer, cache: WordCache, text: str) -> None:
    ((ids, starts),) = cache.encode([text])
    whole = tokenizer.encode_batch([text])[0]
    assert ids.tolist() == whole.ids
    before = [-1, *whole.word_ids]
    assert starts.tolist() == [a != b for a, b in zip(before, whole.word_ids, strict=False)]


@settings(deadline=None)
@given(text=TEXT | st.text())
def test_words_alone_give_the_same_tokens_as_together(tokenizer: Tokenizer, text: str) -> None:
    assert_same_as_whole(tokenizer, WordCache(tokenizer), text)


@pytest.fixture(scope="module")
def published(minilm: Path) -> tuple[Tokenizer, WordCache]:
    tokenizer = Tokenizer.load(minilm)
    return tokenizer, WordCache(tokenizer)


@settings(deadline=None)
@given(text=TEXT)
def test_published_bert_tokenizer_works_word_by_word(
    published: tuple[Tokenizer, WordCache], text: str
) -> None:
    assert_same_as_whole(*published, text)


def test_schemes_of_bert_and_of_our_own_are_known(
    published: tuple[Tokenizer, WordCache], tokenizer: Tokenizer
) -> None:
    assert word_cut(published[0].backend) is not None
    assert word_cut(tokenizer.backend) is not None


def test_roberta_tokenizer_works_word_by_word(roberta: Path) -> None:
    tokenizer = Tokenizer.load(roberta)
    cache = WordCache(tokenizer)
    assert word_cut(tokenizer.backend) is not None
    for text in ("some text and more", " some  text <mask> here\n\nand (there)", "", " "):
        assert_same_as_whole(tokenizer, cache, text)


def test_cache_that_is_full_starts_anew(
    tokenizer: Tokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_cache, "_LIMIT", 10)
    cache = WordCache(tokenizer)
    for text in texts[:20]:
        assert_same_as_whole(tokenizer, cache, text)
        assert len(cache._known) <= 10 + len(text.split()) + 1


def test_scheme_that_is_not_known_is_given_whole_texts(roberta: Path) -> None:
    file = roberta / "tokenizer.json"
    content = json.loads(file.read_text())
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    file.write_text(json.dumps({**content, "pre_tokenizer": metaspace}))
    tokenizer = Tokenizer.load(roberta)
    assert word_cut(tokenizer.backend) is None
    assert_same_as_whole(tokenizer, WordCache(tokenizer), "some more text")


def test_token_that_swallows_the_space_behind_it_forbids_cutting(roberta: Path) -> None:
    file = roberta / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"][4]["rstrip"] = True
    file.write_text(json.dumps(content))
    tokenizer = Tokenizer.load(roberta)
    assert word_cut(tokenizer.backend) is None
    assert_same_as_whole(tokenizer, WordCache(tokenizer), "some <mask> text")
