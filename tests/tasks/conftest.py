"""Small files in the official form of each GLUE task, with every quirk of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tests.made.official import GLUE, write_files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data", GLUE)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    words = " ".join(GLUE.values()).replace("\t", " ").split()
    return train_tokenizer(words, TokenizerConfig(vocab_size=100, min_frequency=1))
