from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from finetune.errors import ConfigError, DataError
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import ALGORITHMS, TokenizerConfig, train_tokenizer

TRAIN_AND_PRINT = """
import json, sys
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
config = TokenizerConfig(algorithm=sys.argv[1], vocab_size=320)
print(train_tokenizer(json.load(sys.stdin), config).fingerprint)
"""


def test_special_tokens_come_first_and_have_berts_names(tokenizer: Tokenizer) -> None:
    names = [tokenizer.backend.id_to_token(number) for number in range(5)]
    assert names == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.special_ids == set(range(5))


def test_vocabulary_has_the_size_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 320
    assert sorted(tokenizer.backend.get_vocab().values()) == list(range(320))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_another_process_learns_the_same_vocabulary(texts: list[str], algorithm: str) -> None:
    # The library's own WordPiece training numbers tokens in the order of a hash map.
    command = [sys.executable, "-c", TRAIN_AND_PRINT, algorithm]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        command,
        input=json.dumps(texts),
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout
    config = TokenizerConfig(algorithm=algorithm, vocab_size=320)
    assert printed.strip() == train_tokenizer(iter(texts), config).fingerprint


def test_wordpiece_learns_what_the_library_learns(texts: list[str]) -> None:
    """Same tokens as `tokenizers`' own training on the same words, though numbered otherwise."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=10_000, show_progress=False, min_frequency=2)
    theirs.train_from_iterator(texts, trainer)
    size = theirs.get_vocab_size() + 5
    ours = train_tokenizer(texts, TokenizerConfig(vocab_size=size))
    assert set(ours.backend.get_vocab()) - set(ours.special_tokens.values()) == set(
        theirs.get_vocab()
    )


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_text_of_the_corpus_is_known(texts: list[str], algorithm: str) -> None:
    tokenizer = train_tokenizer(texts, TokenizerConfig(algorithm=algorithm, vocab_size=300))
    assert all(tokenizer.unk_token_id not in ids for ids in tokenizer.encode_ids(texts))


def test_byte_level_bpe_decodes_to_the_same_text(texts: list[str]) -> None:
    config = TokenizerConfig(algorithm="bpe", vocab_size=300, lowercase=False)
    tokenizer = train_tokenizer(texts, config)
    for text in ("Any text: naïve 日本語 😀 [x] <y>", "two  spaces\nand a line"):
        assert tokenizer.decode(tokenizer.encode_ids([text])[0]).strip() == text


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_case_is_kept_only_when_asked_for(texts: list[str], algorithm: str) -> None:
    for lowercase in (True, False):
        config = TokenizerConfig(algorithm=algorithm, vocab_size=300, lowercase=lowercase)
        upper, lower = train_tokenizer(texts, config).encode_ids(["BADE FI", "bade fi"])
        assert (upper == lower) is lowercase


def test_rare_characters_become_the_unknown_token() -> None:
    config = TokenizerConfig(vocab_size=45, limit_alphabet=20)
    tokenizer = train_tokenizer(["bade fi go"] * 50 + ["abcdefghijklmnopqrstuvwxyz 漢"], config)
    assert tokenizer.encode_ids(["漢"])[0] == [tokenizer.unk_token_id]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_vocabulary_larger_than_the_corpus_gives_names_what_it_gives(
    texts: list[str], algorithm: str
) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocab_size=50_000)
    with pytest.raises(ConfigError, match=r"vocab_size 50000 is more than .* at most") as error:
        train_tokenizer(texts, config)
    given = int(str(error.value).split("at most ")[1].split()[0])
    largest = TokenizerConfig(algorithm=algorithm, vocab_size=given)
    assert train_tokenizer(texts, largest).vocab_size == given


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_vocabulary_smaller_than_its_letters_is_an_error(texts: list[str], algorithm: str) -> None:
    with pytest.raises(ConfigError, match="vocab_size 20 is too small"):
        train_tokenizer(texts, TokenizerConfig(algorithm=algorithm, vocab_size=20))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_error_in_the_corpus_comes_through(algorithm: str) -> None:
    def broken() -> Iterator[str]:
        yield "some text"
        raise DataError("corpus.txt: byte 3 is not UTF-8")

    with pytest.raises(DataError, match="byte 3 is not UTF-8"):
        train_tokenizer(broken(), TokenizerConfig(algorithm=algorithm, vocab_size=300))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_corpus_without_text_is_an_error(algorithm: str) -> None:
    with pytest.raises(DataError, match="expected text .*, got none in the corpus"):
        train_tokenizer(["", " \n"], TokenizerConfig(algorithm=algorithm, vocab_size=300))


def test_unknown_algorithm_is_an_error() -> None:
    with pytest.raises(ConfigError, match="got 'wordpeice'; did you mean 'wordpiece'"):
        TokenizerConfig(algorithm="wordpeice")


@pytest.mark.parametrize("setting", ["vocab_size", "min_frequency", "limit_alphabet"])
def test_settings_below_one_are_errors(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} must be .* from 1 to .*, got 0"):
        TokenizerConfig(**{setting: 0})
