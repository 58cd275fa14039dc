"""Three runs that follow one another, with Weights & Biases: pretraining, adapting, fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from finetune import jobs as runs
from finetune.runs.settings import AdaptRun, FitRun, PretrainRun
from finetune.text.corpus.corpus import CorpusConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig
from finetune.tracking import TrackingConfig
from finetune.training.config import LoaderConfig, TrainerConfig
from finetune.training.loop.progress import LengthConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tests.made.nets import tiny_config
from tests.made.texts import has_the, write_corpus, write_sst2, write_tables


class Chain(NamedTuple):
    """The folders of the runs."""

    pretrained: Path
    adapted: Path
    tuned: Path
    """Of two seeds."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SST-2 whose label says whether `the` is among the words."""
    return write_sst2(tmp_path_factory.mktemp("data"), has_the)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    pytest.importorskip("wandb")
    root: Path = tmp_path_factory.mktemp("chain")
    text = write_corpus(root / "corpus.txt", 120)
    write_tables(root, lambda text: text.startswith("the"), train=40, validation=40)
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
            encoder=tiny_config(hidden_size=8, intermediate_size=16),
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
        "classify/reviews",
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
