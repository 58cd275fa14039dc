"""WNLI and the diagnostic set are answered without training; what asks for training is refused.

And whatever is refused is refused before anything is written or trained.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.runs.folder import RunFolder
from finetune.runs.lock import held

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

PAIRS = "index\tsentence1\tsentence2"
WNLI = f"{PAIRS}\tlabel\n0\tthe cat sees\ta cat\t1\n1\tthe dog hears\ta cat\t0\n2\ta dog\tred\t1\n"
MNLI = (
    f"{PAIRS}\tgold_label\n0\tthe cat sees\ta cat\tneutral\n1\ta dog hears\ta dog\tentailment\n"
    "2\tred tree\tblue tree\tcontradiction\n"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("pairs")
    files = {
        "WNLI/train.tsv": WNLI,
        "WNLI/dev.tsv": WNLI,
        "MNLI/train.tsv": MNLI,
        "MNLI/dev_matched.tsv": MNLI,
        "MNLI/dev_mismatched.tsv": MNLI,
        "diagnostic/diagnostic.tsv": f"{PAIRS}\n0\tthe cat\ta cat\n1\ta dog\tred\n",
    }
    for name, content in files.items():
        file = root / "glue_data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return root


@pytest.fixture(scope="module")
def mnli(world: World, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tasks.__main__ import main

    out: Path = tmp_path_factory.mktemp("mnli") / "run"
    words = world.glue(out, "--max-steps", 1, "--data", data)
    assert main([*words[:1], "mnli", *words[2:]]) == 0
    return out


def words_for(task: str, world: World, data: Path, out: Path, encoder: Path) -> list[object]:
    config = ["--config", world.glue_config, "--data", data, "--encoder", encoder, "--out", out]
    return ["glue", task, *config]


@pytest.mark.parametrize("task", ["wnli", "ax"])
def test_a_dry_run_writes_nothing(
    task: str, world: World, data: Path, mnli: Path, tmp_path: Path, call: Call
) -> None:
    words = words_for(task, world, data, tmp_path / "run", mnli)
    outcome = call(*words, "--dry-run", "--json")
    assert outcome.status == 0, outcome.err
    assert "not trained: " in outcome.err
    assert outcome.json["plan"] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("task", ["wnli", "ax"])
@pytest.mark.parametrize("asked", ["--find-lr", "--seeds 1,2", "--adapt"])
def test_what_only_training_reads_is_refused(
    asked: str,
    task: str,
    world: World,
    data: Path,
    mnli: Path,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    words = [*words_for(task, world, data, tmp_path / "run", mnli), *asked.split()]
    refuses(f".*: glue/{task} is not trained, .*; leave {asked.split()[0]} out", *words)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_locked_while_answers_are_written(
    world: World,
    data: Path,
    mnli: Path,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from finetune.jobs import untrained

    seen = []
    write = untrained.write_answers

    def look(task: object, folder: RunFolder, *more: object) -> None:
        seen.append((folder.path / "running.lock").exists())
        write(task, folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(untrained, "write_answers", look)
    for task in ("wnli", "ax"):
        assert call(*words_for(task, world, data, tmp_path / task, mnli)).status == 0
        assert not (tmp_path / task / "running.lock").exists()
    assert seen == [True, True]


def test_a_curve_of_rates_is_not_written_where_a_run_goes_on(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finetune.jobs import find_lr as finding

    seen = []
    save = finding.save_curve

    def look(folder: RunFolder, curve: finding.RateCurve) -> str:
        seen.append((folder.path / "running.lock").exists())
        return save(folder, curve)

    monkeypatch.setattr(finding, "save_curve", look)
    assert call(*world.glue(tmp_path / "run", "--find-lr")).status == 0
    assert seen == [True]


REFUSED = {
    "a seed given twice": ("--adapt 2steps --seeds 1,1", ".* a seed is given twice; .*"),
    "a rate for two stages": ("--adapt 2steps --find-lr", "--find-lr tries the rates of one .*"),
    "no length of a stage": ("--adapt two", "adapt: expected epochs as 2 or steps as 500steps, .*"),
    "a stage of no weights": ("--adapt --encoder none", "adapt: an encoder of random weights .*"),
    "a dry run of these": ("--adapt two --dry-run", "adapt: expected epochs as 2 or .*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_do_not_go_together_are_refused_before_anything_is_done(
    case: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    asked, pattern = REFUSED[case]
    refuses(pattern, *world.glue(tmp_path / "run", *asked.split()))
    assert list(tmp_path.iterdir()) == []


def test_a_search_that_would_resume_is_refused_before_the_corpus_is_read(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = ["--find-lr", "--resume", "--corpus", tmp_path / "none.txt"]
    refuses("--find-lr tries rates on weights .*", *world.pretrain(world.pretrained, *words))


def test_sequences_too_long_are_refused_before_the_corpus_is_read(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = ["--max-length", 64, "--corpus", tmp_path / "none.txt"]
    refuses("max_length .64. must not exceed .*", *world.pretrain(tmp_path / "run", *words))


def test_a_seed_that_runs_elsewhere_stops_the_run_of_all_seeds(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    run = tmp_path / "run"
    with held(run / "seed-2"):
        asked = ["--seeds", "1,2", "--overwrite"]
        refuses(f".*seed-2: .* got process {os.getpid()}; .*", *world.glue(run, *asked))
    assert not (run / "seed-1").exists()


def test_a_seed_of_another_run_is_refused_before_the_others_are_trained(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    run = tmp_path / "run"
    assert call(*world.glue(run, "--seeds", "1,2", "--max-steps", 1)).status == 0
    for file in (run / "results.json", run / "seed-1" / "results.json"):
        file.unlink()
    config = run / "seed-2" / "config.yaml"
    config.write_text(config.read_text().replace("max_steps: 1", "max_steps: 2"))
    again = ["--seeds", "1,2", "--max-steps", 1, "--resume"]
    refuses(".*seed-2: length.max_steps was 2 .*", *world.glue(run, *again))
    assert not (run / "seed-1" / "results.json").exists()
