"""A small encoder with large weights, so that its heads and layers differ, and a small task."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.jobs.sources import Model
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

WORDS = (
    "the a cat dog bird sees hears likes red blue small old house tree river and but near".split()
)
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 9))) for _ in range(count)]


def make_encoder(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> Encoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = EncoderConfig(vocab_size=tokenizer.vocab_size, **{**SIZES, **changes})
        return Encoder(config).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(sentences(0, 300), TokenizerConfig(vocab_size=60))


@pytest.fixture
def model(tokenizer: Tokenizer) -> Model:
    return Model(Path("made-up"), make_encoder(tokenizer), tokenizer)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SST-2 whose label says whether `the` is among the words, and an STS-B."""
    root: Path = tmp_path_factory.mktemp("data")
    folder = root / "glue_data" / "SST-2"
    folder.mkdir(parents=True)
    for split, seed, count in (("train", 1, 400), ("dev", 2, 100)):
        rows = [f"{text}\t{int('the' in text.split())}" for text in sentences(seed, count)]
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    folder = root / "glue_data" / "STS-B"
    folder.mkdir()
    header = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    row = "0\tnews\tfile\t2012\t0\tnone\tnone\tthe cat\ta dog\t2.500"
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text(f"{header}\n{row}\n{row}\n")
    return root
