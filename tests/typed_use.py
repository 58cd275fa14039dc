"""What a user may write with each public name; read by a type checker, not run.

Every line has a type that it claims: where a name were `Any`, or a method unknown, mypy would say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

import finetune
from finetune import encoder as encoder_package

ERRORS: tuple[type[finetune.FinetuneError], ...] = (
    finetune.CheckpointError,
    finetune.ConfigError,
    finetune.DataError,
)


def encode(place: str | Path, batch: dict[str, Tensor]) -> Tensor:
    """Read an encoder, and use it alone."""
    encoder = finetune.Encoder.from_pretrained(place)
    assert_type(encoder, finetune.Encoder)
    assert_type(encoder, encoder_package.Encoder)  # one class, whichever way it is imported
    assert_type(encoder.config, finetune.EncoderConfig)
    assert_type(encoder.config.hidden_size, int)
    states = encoder(batch).last_hidden_state
    boundary = encoder.prefix(batch, depth=1)
    assert_type(boundary, Tensor)
    assert_type(encoder.suffix(boundary, None, 1), Tensor)
    result: Tensor = states
    return result


def heads(config: finetune.EncoderConfig) -> list[nn.Module]:
    """Make each head."""
    from finetune.heads import SpanConfig

    head = finetune.HeadConfig(pooling="mean", head_dropout=0.1)
    classes = finetune.Classification(config, head, 3, class_weights=[1.0, 1.0, 2.0])
    assert_type(classes.loss(torch.zeros(2, 3), torch.tensor([0, 1])), Tensor)
    return [
        classes,
        finetune.Regression(config, head),
        finetune.MultiLabel(config, head, 5),
        finetune.MultipleChoice(config, head, 4),
        finetune.Span(config, head, SpanConfig(n_best=5)),
        finetune.MaskedLM(config, nn.Embedding(config.vocab_size, config.hidden_size)),
    ]


def train(place: str, corpus_file: Path, trainer: pl.Trainer) -> list[dict[str, Any]]:
    """Pretrain and fine-tune under one's own Trainer."""
    from finetune.text import CorpusConfig, build_corpus

    checkpoint = finetune.find_checkpoint(place)
    tokenizer = checkpoint.tokenizer()
    assert_type(tokenizer, finetune.Tokenizer)
    assert_type(tokenizer.encode_ids(["a text"]), list[list[int]])
    corpus = build_corpus([corpus_file], tokenizer, CorpusConfig(), 1, "cache")
    pretrainer = finetune.Pretrainer(checkpoint.encoder(), seed=1)
    trainer.fit(pretrainer, datamodule=finetune.CorpusData(corpus, tokenizer, seed=1))

    task = finetune.find_task("glue/cola", data="data")
    assert_type(task, finetune.Task)
    assert_type(task.examples("train"), list[finetune.Example])
    encoder = pretrainer.encoder
    assert_type(encoder, finetune.Encoder)
    tuner = finetune.FineTuner(encoder, task.head(encoder.config, finetune.HeadConfig()), task)
    trainer.fit(tuner, datamodule=finetune.TaskData(task, tokenizer, max_length=64))
    predictor = finetune.Predictor(tuner, tokenizer, max_length=64, batch_size=8)
    return predictor.predict(["a text", ("one", "two"), {"text": "a row"}])


def runs(corpus: str) -> list[dict[str, Any]]:
    """The same in runs, each with its folder."""
    pretraining = finetune.PretrainRun([corpus], "runs/pretrained")
    assert_type(finetune.pretrain(pretraining), dict[str, Any])
    assert_type(finetune.fit(finetune.FitRun("runs/pretrained", "glue/cola")), dict[str, Any])
    rows = [{"review": "a text", "stars": 5}]
    table = finetune.fit("classify", train=rows, validation=rows, text="review", encoder="none")
    assert_type(table, dict[str, Any])
    assert_type(finetune.FitRun.from_yaml("a.yaml", max_epochs=3), finetune.FitRun)
    assert_type(finetune.evaluate("runs/glue-cola", split="validation"), dict[str, Any])
    model = finetune.load("runs/glue-cola", batch_size=64)
    assert isinstance(model, finetune.Predictor)  # no filler of masks, of a pretraining run
    assert_type(model.task, finetune.Task)
    return model.predict(["a text"]) + finetune.load("runs/pretrained").predict(["a [MASK]"])


def settings() -> finetune.FitRun:
    """Each section of settings is a class of `finetune`."""
    text = [finetune.CorpusConfig(), finetune.MaskingConfig(), finetune.TokenizerConfig()]
    assert text
    windows: tuple[finetune.WindowConfig, finetune.SpanConfig] = (
        finetune.WindowConfig(),
        finetune.SpanConfig(n_best=5),
    )
    assert windows
    assert finetune.LongConfig(long="windows").has_windows
    return finetune.FitRun(
        "runs/pretrained",
        "glue/cola",
        optimizer=finetune.OptimizerConfig(learning_rate=1e-3),
        schedule=finetune.ScheduleConfig(),
        unfreezing=finetune.UnfreezeConfig(unfreeze="gradual"),
        regularization=finetune.RegularizationConfig(),
        caching=finetune.CacheConfig(),
        loader=finetune.LoaderConfig(batch_size=16),
        length=finetune.LengthConfig(max_epochs=3),
        trainer=finetune.TrainerConfig(devices=1),
        checkpoints=finetune.CheckpointConfig(patience=2),
        tracking=finetune.TrackingConfig(wandb=False),
    )
