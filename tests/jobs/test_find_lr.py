"""`--find-lr`: the file that is written, the picture, and a range test on real settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.checkpoints.seed_folders import RATE_CURVE
from finetune.encoder import Encoder
from finetune.errors import ConfigError
from finetune.heads import HeadConfig
from finetune.jobs.find_lr import find, plot, save_curve, training_batches
from finetune.machine.processes import Place
from finetune.runs.folder import RunFolder
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig, TrainerConfig
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.task_data import TaskData
from finetune.training.lr_finder import RateCurve, rates_of
from tasks.glue.task import glue_task
from tasks.run_settings import GlueRun
from tests.made.nets import tiny_config
from tests.made.settings import fine_tuning

STEPS = 100
CONFIG = tiny_config(num_hidden_layers=1, max_position_embeddings=16)


def curve(steps: int = STEPS, ending: Any = "diverged") -> RateCurve:
    """A loss that falls about the middle and explodes at the end."""
    losses = [0.7 - 0.3 / (1 + math.exp((50 - step) / 5)) for step in range(steps)]
    losses[-3:] = [1.5, 5.0, 40.0]
    return RateCurve(tuple(rates_of(STEPS)[:steps]), tuple(losses), ending)


EXPECTED = [
    "     loss",
    "      1.1 |                        ^",
    "          |**************",
    "          |              ***",
    "          |                 *******",
    "      0.5 |            ............",
    "          +--------------------S--M-",
    "           1e-07               1e+00",
    "           learning rate: . loss, * running mean, S suggested, M lowest mean",
]


class TestFile:
    def test_it_holds_the_curve_and_the_suggestion(self, tmp_path: Path) -> None:
        made = curve()
        save_curve(RunFolder(tmp_path), made)
        content = json.loads((tmp_path / "rate_curve.json").read_text())
        assert list(content) == ["curve", "ending", "suggestion"]
        assert len(content["curve"]) == STEPS
        for step, row in enumerate(content["curve"]):
            assert row == {
                "step": step,
                "learning_rate": made.rates[step],
                "loss": made.losses[step],
                "smoothed": made.smoothed[step],
            }
        assert content["ending"] == "diverged"
        assert content["suggestion"]["learning_rate"] == made.suggestion.learning_rate
        assert list(content["suggestion"]) == ["learning_rate", "minimum", "steepest", "reason"]

    def test_a_curve_without_a_loss_is_written_too(self, tmp_path: Path) -> None:
        text = save_curve(RunFolder(tmp_path), RateCurve((), (), "not finite"))
        content = json.loads((tmp_path / RATE_CURVE).read_text())
        assert content["curve"] == []
        assert content["suggestion"]["learning_rate"] is None
        assert text.startswith("no loss was finite\nno learning rate is suggested: only 0 losses")

    def test_it_is_replaced_whole(self, tmp_path: Path) -> None:
        save_curve(RunFolder(tmp_path), curve())
        save_curve(RunFolder(tmp_path), curve(20))
        assert len(json.loads((tmp_path / RATE_CURVE).read_text())["curve"]) == 20
        assert [path.name for path in tmp_path.iterdir()] == [RATE_CURVE]

    def test_other_processes_write_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = Place(rank=1, size=2, launched=True)
        monkeypatch.setattr("finetune.machine.processes._place", place)
        save_curve(RunFolder(tmp_path), curve())
        assert not list(tmp_path.iterdir())

    def test_the_words_name_the_flag_and_the_file(self, tmp_path: Path) -> None:
        made = curve()
        *_, words, place = save_curve(RunFolder(tmp_path), made).splitlines()
        assert f"--learning-rate {made.suggestion.learning_rate:.1e}, the topmost group" in words
        assert f"(steepest fall at {made.suggestion.steepest:.1e})" in words
        assert place == f"the curve: {tmp_path / RATE_CURVE}"


class TestPicture:
    def test_expected_picture(self) -> None:
        losses = [1.0] * 12 + [0.5] * 12 + [9.0]
        made = RateCurve(tuple(rates_of(25)), tuple(losses), "diverged")
        assert plot(made, height=5).splitlines() == EXPECTED

    @pytest.mark.parametrize("width", [40, 80, 120])
    @pytest.mark.parametrize("steps", [4, 30, 80, STEPS])
    def test_it_fits_and_is_ascii(self, width: int, steps: int) -> None:
        text = plot(curve(steps), width)
        assert text.isascii()
        assert max(map(len, text.splitlines()[:-1])) <= width
        assert len(text.splitlines()[-1]) <= 80
        assert len(text.splitlines()) == 18

    @pytest.mark.parametrize("losses", [[0.0], [0.7] * 30, [0.7, 1e30], [-1.0, -2.0], [0.0] * 5])
    def test_odd_curves_can_be_drawn(self, losses: list[float]) -> None:
        made = RateCurve(tuple(rates_of(STEPS)[: len(losses)]), tuple(losses), "diverged")
        assert "*" in plot(made)

    def test_the_fall_fills_the_picture_though_the_end_explodes(self) -> None:
        rows = [line.partition("|")[2] for line in plot(curve()).splitlines() if "|" in line]
        assert "^" in rows[0]
        with_mean = [number for number, row in enumerate(rows) if "*" in row]
        assert max(with_mean) - min(with_mean) >= 8

    def test_the_marks_stand_a_decade_apart(self) -> None:
        axis = next(line for line in plot(curve(), 120).splitlines() if "+" in line)
        assert axis.index("M") - axis.index("S") == pytest.approx(99 / 7, abs=1.5)


@pytest.fixture
def parts(
    data: Path, tokenizer: Tokenizer, tmp_path: Path
) -> Callable[..., tuple[GlueRun, FineTuner, TaskData]]:
    def make(**changes: Any) -> tuple[GlueRun, FineTuner, TaskData]:
        run = fine_tuning(data, tmp_path / "run", **changes)
        task = glue_task("sst2", data)
        torch.manual_seed(0)
        module = FineTuner(Encoder(CONFIG), task.head(CONFIG, HeadConfig()), task, seed=run.seed)
        cache = tmp_path / "cache"
        return (
            run,
            module,
            TaskData(task, tokenizer, run.loader, max_length=16, seed=run.seed, cache_dir=cache),
        )

    return make


class TestFinding:
    def test_the_curve_is_saved_shown_and_nothing_else_happens(
        self, parts: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run, module, data = parts()
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        results = find(run, RunFolder(tmp_path / "run"), module, data, "glue/sst2")
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        assert names == ["config.yaml", RATE_CURVE]
        content = json.loads((tmp_path / "run" / RATE_CURVE).read_text())
        assert results["suggestion"] == content["suggestion"]
        assert (results["metrics"], results["seed"]) == ({}, 1)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "learning rate: . loss, * running mean" in shown.err
        assert all(torch.equal(before[name], now) for name, now in module.state_dict().items())
        assert RunFolder(tmp_path / "run").read_settings(GlueRun) == run

    def test_a_run_that_has_begun_is_left_as_it_is(
        self, parts: Callable[..., Any], tmp_path: Path
    ) -> None:
        run, module, data = parts()
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "config.yaml").write_text("kept")
        (folder / "results.json").write_text("kept")
        find(run, RunFolder(folder), module, data, "glue/sst2")
        assert (folder / "config.yaml").read_text() == "kept"
        assert (folder / "results.json").read_text() == "kept"
        assert (folder / RATE_CURVE).is_file()

    def test_a_folder_of_something_else_is_refused(
        self, parts: Callable[..., Any], tmp_path: Path
    ) -> None:
        run, module, data = parts()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "letters.txt").write_text("kept")
        with pytest.raises(ConfigError, match="is not empty and contains no run"):
            find(run, RunFolder(tmp_path / "run"), module, data, "glue/sst2")
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["letters.txt"]

    def test_going_on_with_a_run_is_refused(
        self, parts: Callable[..., Any], tmp_path: Path
    ) -> None:
        run, module, data = parts(resume=True)
        with pytest.raises(ConfigError, match="is resumed; remove --resume"):
            find(run, RunFolder(tmp_path / "run"), module, data, "glue/sst2")

    def test_batches_of_several_processes_make_one_step(
        self, parts: Callable[..., Any], tmp_path: Path
    ) -> None:
        losses = []
        for devices, micro_batches in ((2, 1), (1, 2)):
            loader = LoaderConfig(batch_size=8, micro_batches=micro_batches)
            run, module, data = parts(trainer=TrainerConfig(devices=devices), loader=loader)
            find(run, RunFolder(tmp_path / "run"), module, data, "glue/sst2")
            rows = json.loads((tmp_path / "run" / RATE_CURVE).read_text())["curve"]
            losses.append([row["loss"] for row in rows])
        assert losses[0] == losses[1]

    def test_batches_are_those_of_the_run_epoch_after_epoch(
        self, parts: Callable[..., Any]
    ) -> None:
        data = parts()[2]
        found = [batch["index"].tolist() for batch in islice(training_batches(data, 1), 26)]
        orders = [data.order(epoch) for epoch in range(3)]
        expected = [sorted(units.tolist()) for order in orders for units in order]
        assert [sorted(index) for index in found] == expected[:26]
        assert found[:12] != found[12:24]
