"""A small corpus, a small labelled task, and settings for runs of seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.runs.settings import PretrainRun
from finetune.text.corpus.corpus import Corpus, build_corpus
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.run_settings import GlueRun
from tests.made import settings
from tests.made.texts import write_corpus, write_sst2


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


@pytest.fixture(scope="session")
def blocks(corpus: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build_corpus([corpus], tokenizer, settings.BLOCKS, 1, tmp_path_factory.mktemp("blocks"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SST-2 whose label says whether the first word is `the`."""
    return write_sst2(tmp_path_factory.mktemp("data"), lambda text: text.startswith("the"))


@pytest.fixture
def pretraining(corpus: Path, tmp_path: Path) -> Callable[..., PretrainRun]:
    def make(out: str, **changes: Any) -> PretrainRun:
        return settings.pretraining(corpus, tmp_path / out, **changes)

    return make


@pytest.fixture
def fine_tuning(data: Path, tmp_path: Path) -> Callable[..., GlueRun]:
    def make(out: str, **changes: Any) -> GlueRun:
        return settings.fine_tuning(data, tmp_path / out, **changes)

    return make
