"""The warning about guessing: when it comes, when it does not, and that it outlives a stop."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from finetune.training.loop.chance import FEWEST_BATCHES, ChanceWatch, at_chance

WARNING = "over the first third of training the loss was .*, that of guessing among 4 options"


class TestRule:
    @pytest.mark.parametrize("count", [2, 3, 4, 26])
    @pytest.mark.parametrize(
        ("share", "expected"),
        [(1.0, True), (1.019, True), (0.981, True), (1.021, False), (0.979, False), (0.0, False)],
    )
    def test_guessing_is_within_two_percent_of_ln_c(
        self, count: int, share: float, expected: bool
    ) -> None:
        assert at_chance(share * math.log(count), count) is expected

    def test_where_there_is_no_choice_nobody_guesses(self) -> None:
        assert not at_chance(0.0, 1)
        assert not at_chance(0.0, 0)

    @pytest.mark.parametrize("loss", [math.nan, math.inf])
    def test_a_loss_that_is_no_number_is_not_that_of_guessing(self, loss: float) -> None:
        assert not at_chance(loss, 4)


class Run:
    """As much of a Trainer as the watch looks at."""

    def __init__(self, steps: int, *, accumulate: int = 1, is_global_zero: bool = True) -> None:
        self.trainer: Any = SimpleNamespace(
            accumulate_grad_batches=accumulate, is_global_zero=is_global_zero
        )
        self.steps, self.step = steps, 0

    def watch(self) -> ChanceWatch:
        return ChanceWatch(4, lambda: self.step / self.steps)

    def train(self, watch: ChanceWatch, losses: list[float]) -> None:
        module: Any = None
        for number, loss in enumerate(losses):
            self.step += 1
            loss /= self.trainer.accumulate_grad_batches  # as Lightning hands it on
            outputs = {"loss": torch.tensor(loss, requires_grad=True)}
            watch.on_train_batch_end(self.trainer, module, outputs, {}, number)


class TestWatch:
    @pytest.mark.parametrize("accumulate", [1, 4])
    def test_it_warns_once_when_a_third_is_behind(self, accumulate: int) -> None:
        run = Run(60, accumulate=accumulate)
        watch = run.watch()
        run.train(watch, [math.log(4)] * 19)
        with pytest.warns(UserWarning, match=WARNING) as caught:
            run.train(watch, [math.log(4)])
        assert len(caught) == 1
        assert "learning_rate" in str(caught[0].message)
        run.train(watch, [math.log(4)] * 40)  # a warning would be an error

    def test_it_says_nothing_where_the_loss_has_fallen(self) -> None:
        run = Run(60)
        run.train(run.watch(), [math.log(4)] * 10 + [1.2] * 10 + [math.log(4)] * 40)

    def test_losses_after_the_first_third_do_not_count(self) -> None:
        run = Run(60)
        watch = run.watch()
        run.train(watch, [3.0] * 20)
        state = watch.state_dict()
        run.train(watch, [math.log(4)] * 40)
        assert watch.state_dict() == state

    def test_a_few_batches_are_no_verdict(self) -> None:
        run = Run(3 * (FEWEST_BATCHES - 1))
        run.train(run.watch(), [math.log(4)] * run.steps)
        run = Run(3 * FEWEST_BATCHES)
        with pytest.warns(UserWarning, match=WARNING):
            run.train(run.watch(), [math.log(4)] * run.steps)

    def test_one_process_of_several_warns(self) -> None:
        run = Run(60, is_global_zero=False)
        run.train(run.watch(), [math.log(4)] * 60)

    @pytest.mark.parametrize("stop", [1, 12, 19])
    def test_a_resumed_run_judges_as_the_uninterrupted_one(self, stop: int) -> None:
        losses = [math.log(4) + (0.1 if number % 2 else -0.1) for number in range(20)]
        whole, parted = Run(60), Run(60)
        watch = parted.watch()
        parted.train(watch, losses[:stop])
        state = watch.state_dict()
        assert all(type(value) in (float, int, bool) for value in state.values())
        resumed = parted.watch()
        resumed.load_state_dict(state)
        messages = []
        for run, one, rest in ((whole, whole.watch(), losses), (parted, resumed, losses[stop:])):
            with pytest.warns(UserWarning, match=WARNING) as caught:
                run.train(one, rest)
            messages.append(str(caught[0].message))
        assert messages[0] == messages[1]

    def test_a_run_resumed_after_its_first_third_is_not_warned_again(self) -> None:
        run = Run(60)
        watch = run.watch()
        with pytest.warns(UserWarning, match=WARNING):
            run.train(watch, [math.log(4)] * 20)
        resumed = run.watch()
        resumed.load_state_dict(watch.state_dict())
        run.train(resumed, [math.log(4)] * 40)


class Chooser(pl.LightningModule):
    """Scores four options by a product; its labels can be learnt or cannot."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.weight = torch.nn.Parameter(torch.zeros(5))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        options, labels = batch
        return {"loss": torch.nn.functional.cross_entropy(options @ self.weight, labels)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.rate)


def fit(rate: float, folder: Path, steps: int, ckpt: Path | None = None) -> pl.Trainer:
    """Train up to `steps` of a run of 60."""
    torch.manual_seed(0)
    options = torch.randn(64, 4, 5)
    data = TensorDataset(options, options[..., 0].argmax(dim=1))
    module = Chooser(rate)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[ChanceWatch(4, lambda: module.global_step / 60)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(data, batch_size=8), ckpt_path=ckpt)
    return trainer


class TestFit:
    def test_a_run_that_learns_nothing_is_warned(self, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match=WARNING):
            fit(0.0, tmp_path, 60)

    def test_a_run_that_learns_is_not(self, tmp_path: Path) -> None:
        fit(1.0, tmp_path, 60)

    @pytest.mark.parametrize("stop", [8, 24])
    def test_its_state_is_a_part_of_the_checkpoint(self, stop: int, tmp_path: Path) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(0.0, tmp_path, stop).save_checkpoint(tmp_path / "last.ckpt")
            before = sum("guessing" in str(warning.message) for warning in caught)
            fit(0.0, tmp_path, 60, tmp_path / "last.ckpt")
            after = sum("guessing" in str(warning.message) for warning in caught)
        assert (before, after) == (int(stop > 20), 1)
