"""The modules under a Trainer of one's own, made without a word about this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from finetune.encoder import Encoder
from finetune.errors import ConfigError
from finetune.heads import HeadConfig
from finetune.text.corpus.corpus import Corpus
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig
from finetune.training.loop.data import CorpusData
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.monitor import Monitor
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import Clock, LengthConfig, RunLength
from finetune.training.loop.task_data import TaskData
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import rate_factor
from tasks.glue.task import glue_task
from tests.made.nets import tiny_config

CONFIG = tiny_config()
OWN: dict[str, Any] = {
    "accelerator": "cpu",
    "log_every_n_steps": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}


class Watch(pl.Callback):
    """Keeps the batches, and whether all modules trained on them."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Tensor]] = []
        self.training = True

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Mapping[str, Tensor], n: int
    ) -> None:
        self.batches.append((trainer.current_epoch, batch["input_ids"]))
        self.training &= all(part.training for part in module.modules())


def trainer(*callbacks: pl.Callback, **more: Any) -> pl.Trainer:
    settings = {**OWN, "enable_checkpointing": False, "max_epochs": 2, **more}
    return pl.Trainer(callbacks=list(callbacks), **settings)


@pytest.fixture
def corpus_data(blocks: Corpus, tokenizer: Tokenizer) -> CorpusData:
    return CorpusData(blocks, tokenizer, loader=LoaderConfig(batch_size=32))


@pytest.fixture
def task_data(data: Path, tokenizer: Tokenizer) -> TaskData:
    return TaskData(glue_task("sst2", data), tokenizer, LoaderConfig(batch_size=16), max_length=16)


def fine_tuner(data: TaskData) -> FineTuner:
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).eval()  # as `from_pretrained` gives it
    head = data.task.head(CONFIG, HeadConfig())
    return FineTuner(encoder, head, data.task, optimizer=OptimizerConfig(learning_rate=1e-2))


def test_each_epoch_has_its_own_order_and_masks(corpus_data: CorpusData) -> None:
    watch = Watch()
    trainer(watch).fit(Pretrainer(Encoder(CONFIG)), datamodule=corpus_data)
    for epoch in (0, 1):
        seen = [ids for when, ids in watch.batches if when == epoch]
        made = corpus_data.training_set(epoch)
        expected = [made[batch]["input_ids"] for batch in corpus_data.order(epoch)]
        assert len(seen) == len(expected)
        assert all(map(torch.equal, seen, expected))


def test_an_encoder_in_eval_mode_is_trained_with_dropout(task_data: TaskData) -> None:
    watch = Watch()
    trainer(watch, max_steps=2).fit(fine_tuner(task_data), datamodule=task_data)
    assert watch.training


def test_the_figures_are_there_to_monitor(task_data: TaskData) -> None:
    own, module = trainer(max_epochs=1), fine_tuner(task_data)
    own.fit(module, datamodule=task_data)
    assert set(own.callback_metrics) == {"train/loss", "val/loss", "val/accuracy"}
    again = own.validate(module, datamodule=task_data, verbose=False)
    assert again[0]["val/accuracy"] == pytest.approx(float(own.callback_metrics["val/accuracy"]))


def test_of_a_split_that_is_read_in_part_there_is_a_loss_and_no_score(task_data: TaskData) -> None:
    own = trainer(max_epochs=1, limit_val_batches=1)
    own.fit(fine_tuner(task_data), datamodule=task_data)
    assert set(own.callback_metrics) == {"train/loss", "val/loss"}


def test_batches_without_examples_cannot_be_scored(task_data: TaskData) -> None:
    loader = task_data.loader("validation")
    with pytest.raises(ConfigError, match=r"train with datamodule=TaskData\(...\), or give it"):
        trainer().fit(fine_tuner(task_data), task_data.train_dataloader(), loader)


def test_a_run_without_an_end_is_refused(task_data: TaskData) -> None:
    with pytest.raises(ConfigError, match="give the Trainer max_epochs or max_steps"):
        trainer(max_epochs=-1).fit(fine_tuner(task_data), datamodule=task_data)


def test_batches_are_not_shared_out_twice(task_data: TaskData) -> None:
    two = {"devices": 2, "strategy": "ddp"}
    task_data.trainer = trainer(**two)
    with pytest.raises(ConfigError, match="use_distributed_sampler=False"):
        task_data.setup("fit")
    task_data.trainer = trainer(**two, use_distributed_sampler=False)
    task_data.setup("fit")


def test_gradients_are_clipped_by_value_where_that_is_asked_for(task_data: TaskData) -> None:
    class Largest(pl.Callback):
        values: list[float] = []

        def on_before_zero_grad(self, *args: Any) -> None:
            gradients = [p.grad for p in args[1].parameters() if p.grad is not None]
            self.values += [float(g.abs().max()) for g in gradients]

    own = trainer(Largest(), max_steps=3, gradient_clip_val=1e-4, gradient_clip_algorithm="value")
    own.fit(fine_tuner(task_data), datamodule=task_data)
    assert max(Largest.values) == pytest.approx(1e-4)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_lightnings_own_checkpoint_of_an_epoch_goes_on_as_if_uninterrupted(
    task_data: TaskData, tmp_path: Path
) -> None:
    def keeping() -> pl.Trainer:
        keep = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        return trainer(keep, enable_checkpointing=True)

    whole, parts = fine_tuner(task_data), fine_tuner(task_data)
    keeping().fit(whole, datamodule=task_data)
    first, second = (tmp_path / f"epoch={epoch}.ckpt" for epoch in (0, 1))
    second.unlink()
    keeping().fit(parts, datamodule=task_data, ckpt_path=first, weights_only=True)
    assert second.is_file()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, parts.state_dict()[name]), name


class Rates(pl.Callback):
    """Keeps the rate that each step was made with."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.steps.append(optimizer.param_groups[-1]["lr"])


def test_each_step_has_the_rate_of_the_fraction_that_is_done(task_data: TaskData) -> None:
    rates, module = Rates(), fine_tuner(task_data)
    trainer(rates, max_steps=8).fit(module, datamodule=task_data)
    expected = [1e-2 * rate_factor(step / 8, module.schedule_config) for step in range(8)]
    assert rates.steps == expected


class WithSgd(FineTuner):
    """Brings an optimizer of its own, whose groups have no names."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_optimizer_of_ones_own_trains_at_its_own_rate(task_data: TaskData) -> None:
    torch.manual_seed(0)
    encoder, head = Encoder(CONFIG), task_data.task.head(CONFIG, HeadConfig())
    before = encoder.embeddings.word_embeddings.weight.detach().clone()
    rates = Rates()
    length = RunLength(LengthConfig(max_steps=3), 6, Clock())
    own = trainer(rates, Monitor(length, 1, show_progress=False), max_steps=3)
    own.fit(WithSgd(encoder, head, task_data.task), datamodule=task_data)
    assert rates.steps == [0.1] * 3
    assert not torch.equal(before, encoder.embeddings.word_embeddings.weight)
