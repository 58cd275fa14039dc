"""Whose folder it is, what `--overwrite` removes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConfigError, DataError
from finetune.files.cache_folder import cache_folder
from finetune.files.writing import TEMPORARY
from finetune.runs import opening
from finetune.runs.folder import RunFolder
from finetune.runs.inputs import with_full_paths
from finetune.runs.opening import check_folder, clear_folder, open_folder
from finetune.runs.results import over_seeds, summarise


@dataclass
class Tracking:
    """Where figures go."""

    name: str | None = None
    """Name."""


@dataclass
class Run:
    """Do something."""

    out: str = "x"
    """Folder."""
    seed: int = 1
    """Seed."""
    rate: float = 1e-5
    """Rate."""
    seeds: list[int] | None = None
    """Seeds."""
    encoder_from: str = "none"
    """Encoder."""
    tracking: Tracking = field(default_factory=Tracking)


@dataclass
class OtherRun:
    """Do something else."""

    colour: str = "red"
    """Colour."""


def start(folder: Path, run: object | None = None, **words: bool) -> None:
    open_folder(RunFolder(folder), run or Run(), **{"resume": False, "overwrite": False, **words})


def checkpoint(folder: Path) -> None:
    (folder / "checkpoints" / "last").mkdir(parents=True)
    (folder / "checkpoints" / "last" / "config.json").write_text("{}")


def test_a_new_folder_is_made_with_the_settings_in_it(tmp_path: Path) -> None:
    run = Run(seeds=[1, 2], rate=1e-7)
    start(tmp_path / "a" / "run", run)
    assert RunFolder(tmp_path / "a" / "run").read_settings(Run) == with_full_paths(run)
    assert [path.name for path in (tmp_path / "a" / "run").iterdir()] == ["config.yaml"]


def test_a_folder_is_only_looked_at_by_the_check(tmp_path: Path) -> None:
    check_folder(RunFolder(tmp_path / "run"), Run(), resume=False, overwrite=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["", "seed-3"])
def test_a_run_with_a_checkpoint_is_kept(where: str, tmp_path: Path) -> None:
    start(tmp_path)
    checkpoint(tmp_path / where)
    assert RunFolder(tmp_path).has_started
    with pytest.raises(ConfigError, match="already contains a run"):
        start(tmp_path)


def test_a_run_with_results_is_kept(tmp_path: Path) -> None:
    start(tmp_path)
    RunFolder(tmp_path).write_results({"metrics": {}})
    with pytest.raises(ConfigError, match="already contains a run"):
        start(tmp_path)


def test_a_run_without_a_checkpoint_is_started_over(tmp_path: Path) -> None:
    start(tmp_path, Run(seed=1))
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    assert not RunFolder(tmp_path).has_started
    start(tmp_path, Run(seed=2))
    assert RunFolder(tmp_path).read_settings(Run).seed == 2
    assert not (tmp_path / "metrics.jsonl").exists()


def test_overwrite_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    start(tmp_path)
    for part in ("checkpoints/best", "predictions", "seed-1/checkpoints", "wandb", "mine"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "file").write_text("")
    checkpoint(tmp_path)
    RunFolder(tmp_path).write_results({})
    (tmp_path / "notes.txt").write_text("mine\n")
    start(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "mine", "notes.txt"}


def test_clearing_does_not_follow_a_link_out_of_the_folder(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "file").write_text("")
    run.mkdir()
    (run / "checkpoints").symlink_to(outside)
    clear_folder(RunFolder(run))
    assert not list(run.iterdir())
    assert (outside / "file").exists()


@pytest.mark.parametrize("inside", [".", "checkpoints/last"])
def test_what_the_run_reads_is_not_overwritten(inside: str, tmp_path: Path) -> None:
    start(tmp_path)
    checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="whose run is to be replaced"):
        start(tmp_path, Run(encoder_from=str(tmp_path / inside)), overwrite=True)


def test_what_lies_beside_the_run_may_be_read(tmp_path: Path) -> None:
    start(tmp_path)
    checkpoint(tmp_path)
    (tmp_path / "encoder").mkdir()
    start(tmp_path, Run(encoder_from=str(tmp_path / "encoder")), overwrite=True)


def test_resuming_leaves_the_settings_as_they_are(tmp_path: Path) -> None:
    start(tmp_path, Run())
    before = (tmp_path / "config.yaml").read_text()
    start(tmp_path, replace(Run(), out="elsewhere", tracking=Tracking("new")), resume=True)
    assert (tmp_path / "config.yaml").read_text() == before


@pytest.mark.parametrize("change", [{"seed": 2}, {"rate": 2e-5}, {"seeds": [1]}])
def test_resuming_under_other_settings_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    start(tmp_path)
    with pytest.raises(ConfigError, match=f"{next(iter(change))} was .* when the run began"):
        start(tmp_path, replace(Run(), **change), resume=True)


def test_a_setting_that_is_newer_than_the_run_has_its_default(tmp_path: Path) -> None:
    tmp_path.joinpath("config.yaml").write_text("seed: 1\n")
    start(tmp_path, Run(), resume=True)


def test_settings_of_another_kind_of_run_are_refused(tmp_path: Path) -> None:
    start(tmp_path, OtherRun())
    with pytest.raises(ConfigError, match="made to do something, got one of another kind"):
        RunFolder(tmp_path).read_settings(Run)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = {"task": "glue/sst2", "metrics": {"accuracy": 0.1 + 0.2}}
    RunFolder(tmp_path).write_results(results)
    assert RunFolder(tmp_path).read_results() == results


def test_results_that_are_missing_or_damaged_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the run has not ended"):
        RunFolder(tmp_path).read_results()
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match="expected JSON"):
        RunFolder(tmp_path).read_results()


def result(seed: int, accuracy: float, *, degenerate: bool = False) -> dict[str, Any]:
    return {
        "task": "glue/sst2",
        "split": "validation",
        "seed": seed,
        "metrics": {"accuracy": accuracy},
        "collapsed": degenerate,
    }


def test_seeds_are_summed_up_with_the_deviation_of_a_sample() -> None:
    together = over_seeds([result(1, 0.5), result(3, 0.7), result(2, 0.9, degenerate=True)])
    assert together["seeds"] == [1, 3, 2]
    assert together["collapsed"] == [2]
    entry = together["metrics"]["accuracy"]
    assert entry["values"] == [0.5, 0.7, 0.9]
    assert entry["mean"] == pytest.approx(0.7)
    assert entry["std"] == pytest.approx(0.2)
    json.dumps(together, allow_nan=False)


def test_the_best_of_several_seeds_answers_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path)
    folder.config_file.write_text("seeds: [1, 2, 3]\n")
    assert folder.planned_seeds == [folder.seed(1), folder.seed(2), folder.seed(3)]
    with pytest.raises(ConfigError, match=r"several seeds; choose one: .*seed-1 .*--resume"):
        folder.one_run()
    folder.write_results(over_seeds([result(1, 0.5), result(2, 0.75), result(3, 0.6)]))
    assert folder.one_run() == folder.seed(2)
    assert capsys.readouterr().err == (
        f"{tmp_path}: several seeds; the best by accuracy is seed 2\n"
    )
    assert folder.seed(2).one_run() == folder.seed(2)


def test_one_value_deviates_by_nothing() -> None:
    assert summarise([0.5]) == {"mean": 0.5, "std": 0.0, "values": [0.5]}


# What kills leave


def left(folder: Path) -> Path:
    """What a process that was killed had not finished."""
    return folder / f"{TEMPORARY}0a1b2c"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_nothing_but_what_a_killed_run_had_begun_takes_a_run(
    overwrite: bool, tmp_path: Path
) -> None:
    (tmp_path / "running.lock").write_text("1\n")
    left(tmp_path).write_text("out: ")
    check_folder(RunFolder(tmp_path), Run(), resume=False, overwrite=overwrite)
    start(tmp_path, overwrite=overwrite)
    assert not left(tmp_path).exists()
    assert RunFolder(tmp_path).read_settings(Run) == with_full_paths(Run())


def test_a_checkpoint_that_was_cut_off_is_no_start(tmp_path: Path) -> None:
    start(tmp_path)
    place = left(tmp_path / "checkpoints")
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert not RunFolder(tmp_path).has_started
    start(tmp_path)


def test_a_run_that_goes_on_leaves_nothing_of_the_kill(tmp_path: Path) -> None:
    start(tmp_path)
    checkpoints = tmp_path / "checkpoints"
    for name in ("last", ".finetune-old-last", ".finetune-old-best"):
        (checkpoints / name).mkdir(parents=True)
        (checkpoints / name / "config.json").write_text(name)
    left(checkpoints).mkdir()
    left(tmp_path).write_text("half")
    start(tmp_path, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "config.yaml"]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "last"]
    assert (checkpoints / "last" / "config.json").read_text() == "last"


def test_a_run_that_starts_sweeps_what_killed_ones_left_in_the_cache(tmp_path: Path) -> None:
    left(cache_folder()).mkdir(parents=True)
    start(tmp_path / "run")
    assert list(cache_folder().iterdir()) == []


def test_a_run_is_removed_from_its_results_to_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what a kill leaves of it can go on, or has not started."""
    removed: list[str] = []
    monkeypatch.setattr(opening, "remove", lambda path: removed.append(path.name))
    (tmp_path / "seed-1").mkdir()
    clear_folder(RunFolder(tmp_path))
    assert removed[:3] == ["results.json", "seed-1", "checkpoints"]
    assert removed[-1] == "config.yaml"


@dataclass
class Replacing(Run):
    """Do something in the place of something else."""

    resume: bool = False
    """Go on."""
    overwrite: bool = False
    """Replace."""


def test_settings_that_are_used_again_do_not_replace_the_run(tmp_path: Path) -> None:
    start(tmp_path, Replacing(overwrite=True), overwrite=True)
    assert RunFolder(tmp_path).read_settings(Replacing) == with_full_paths(Replacing())
