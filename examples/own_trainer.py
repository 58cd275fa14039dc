"""Pretraining and fine-tuning with your own Trainer, loggers and callbacks.

    python examples/own_trainer.py CORPUS TRAIN VALIDATION OUT

CORPUS is a text file, TRAIN and VALIDATION are tables with the columns `text` and `label`. Training
uses the two LightningModules and the two LightningDataModules only. At the end `Predictor.save`
writes OUT/run, so that `finetune.load`, `finetune evaluate`, `export` and `report` work on it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

import finetune
from finetune.text import (
    CorpusConfig,
    TokenizerConfig,
    build_corpus,
    corpus_sources,
    read_documents,
    train_tokenizer,
)

# Toy sizes; for a text of any size 8,000 tokens and more, and a width of 128 and more.
SHAPE = finetune.EncoderConfig(
    vocab_size=80,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
)
LOADER = finetune.LoaderConfig(batch_size=16)
RATE = finetune.OptimizerConfig(learning_rate=1e-2)


class Diary(pl.Callback):
    """Your own callback: it records the monitored value after each validation."""

    def __init__(self, monitor: str) -> None:
        """Say which value to note."""
        self.monitor, self.values = monitor, list[float]()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note it."""
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics[self.monitor]))


def trainer(out: Path, callbacks: Sequence[pl.Callback], epochs: int) -> pl.Trainer:
    """Any Trainer will do: what the DataModules need of it they see to themselves."""
    return pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=1.0,
        log_every_n_steps=1,
        logger=CSVLogger(out, name="log"),
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def pretrain(
    corpus_file: Path, out: Path, epochs: int
) -> tuple[finetune.Pretrainer, finetune.Tokenizer, Diary]:
    """From a text file to an encoder."""
    texts = read_documents(corpus_sources([corpus_file]), text_field="text", file_is_document=False)
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=SHAPE.vocab_size))
    config = CorpusConfig(max_length=32, validation_fraction=0.1)
    corpus = build_corpus([corpus_file], tokenizer, config, seed=1, cache_dir=out / "cache")
    module = finetune.Pretrainer(finetune.Encoder(SHAPE), optimizer=RATE)
    diary = Diary("val/loss")
    keep = ModelCheckpoint(out / "pretrained", monitor="val/loss", enable_version_counter=False)
    data = finetune.CorpusData(corpus, tokenizer, loader=LOADER, seed=1)
    trainer(out, [diary, keep], epochs).fit(module, datamodule=data)
    return module, tokenizer, diary


def fine_tune(
    encoder: finetune.Encoder,
    tokenizer: finetune.Tokenizer,
    task: finetune.Task,
    out: Path,
    epochs: int,
) -> tuple[finetune.Predictor, Diary]:
    """From an encoder to answers."""
    head = task.head(encoder.config, finetune.HeadConfig(pooling="mean"))
    module = finetune.FineTuner(encoder, head, task, optimizer=RATE)
    diary = Diary(f"val/{task.monitor}")
    stop = EarlyStopping(f"val/{task.monitor}", mode="max", patience=5)
    data = finetune.TaskData(task, tokenizer, LOADER, max_length=32, seed=1)
    trainer(out, [diary, stop], epochs).fit(module, datamodule=data)
    return finetune.Predictor(module, tokenizer, max_length=32, batch_size=16), diary


def main(words: Sequence[str], epochs: int = 3) -> tuple[finetune.Predictor, Diary, Diary]:
    """Do both; return what answers texts, and the two diaries."""
    corpus, train, validation, out = map(Path, words)
    pl.seed_everything(1, verbose=False)
    pretrained, tokenizer, before = pretrain(corpus, out / "pretrain", epochs)
    task = finetune.find_task("classify", train=train, validation=validation)
    predictor, after = fine_tune(pretrained.encoder, tokenizer, task, out / "fine-tune", epochs)
    rate = RATE.learning_rate
    predictor.save(out / "run", learning_rate=rate, max_epochs=epochs, seed=1, pooling="mean")
    return predictor, before, after


if __name__ == "__main__":
    answerer, _, diary = main(sys.argv[1:])
    print("validation:", *(f"{value:.3f}" for value in diary.values))
    print(answerer.predict(["a new text"])[0])
