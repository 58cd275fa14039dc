"""Three runs that follow one another, with Weights & Biases: pretraining, adapting, fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from finetune import jobs as runs
from finetune.encoder import EncoderConfig
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.text.corpus.corpus import CorpusConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig
from finetune.tracking import TrackingConfig
from finetune.training.loop.data import LoaderConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.trainer import TrainerConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tests.training.conftest import sentences

ENCODER = EncoderConfig(
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)


class Chain(NamedTuple):
    """The folders of the runs."""

    pretrained: Path
    adapted: Path
    tuned: Path
    """Of two seeds."""


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    pytest.importorskip("wandb")
    root: Path = tmp_path_factory.mktemp("chain")
    text = root / "corpus.txt"
    text.write_text("\n\n".join(sentences(0, 120)) + "\n")
    for name, seed in (("train", 1), ("validation", 2)):
        rows = [f"{text},{text.startswith('the')}" for text in sentences(seed, 40)]
        (root / f"{name}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    made = Chain(root / "pretrained", root / "adapted", root / "tuned")
    common = {
        "cache_dir": str(root / "cache"),
        "length": LengthConfig(max_steps=4),
        "trainer": TrainerConfig(log_every_steps=2, validate_every_steps=2, progress=False),
        "loader": LoaderConfig(batch_size=8),
        "tracking": TrackingConfig(tags=["mine"]),
    }
    corpus = CorpusConfig(max_length=16, validation_fraction=0.2)
    runs.pretrain(
        PretrainRun(
            [str(text)],
            str(made.pretrained),
            encoder=ENCODER,
            vocabulary=TokenizerConfig(vocab_size=60),
            data=corpus,
            **common,  # type: ignore[arg-type]
        )
    )
    runs.adapt(
        AdaptRun(str(made.pretrained), str(made.adapted), [str(text)], text=corpus, **common)  # type: ignore[arg-type]
    )
    run = FitRun(
        str(made.adapted),
        "classify/own",
        str(made.tuned),
        train=str(root / "train.csv"),
        validation=str(root / "validation.csv"),
        max_length=16,
        seeds=[1, 2],
        unfreezing=UnfreezeConfig("gradual", phase_epochs=0.2),
        **common,  # type: ignore[arg-type]
    )
    runs.fit(replace(run, tracking=TrackingConfig(checkpoint_artifact=True, table_examples=7)))
    return made
