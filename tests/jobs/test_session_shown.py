"""What whole runs show, read back from the files that they wrote offline."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from finetune.dashboards.panels import CHAPTERS, SECTIONS, Panel
from finetune.runs.folder import RunFolder
from tests.jobs.conftest import Chain
from tests.made import wandb_files as read

SECTION_NAMES = {"train", "val", "lr", "perf", "frozen", "data"}


def logged(folder: Path) -> set[str]:
    """Names of all numbers of a run's history."""
    rows = read.history(folder)
    return {name for row in rows for name, value in row.items() if isinstance(value, int | float)}


def seed(chain: Chain, number: int = 1) -> Path:
    return chain.tuned / f"seed-{number}"


def test_names_stand_in_sections_and_all_have_the_one_axis(chain: Chain) -> None:
    for folder in (chain.pretrained, chain.adapted, seed(chain)):
        names = logged(folder)
        tables = {name for name in names if "/validation" in name}
        assert {name.split("/")[0] for name in names - tables if "/" in name} <= SECTION_NAMES
        assert {name for name in names - tables if "/" not in name} == {"step", "epoch"}
        definitions = read.definitions(folder)
        assert {axis for name, (axis, _) in definitions.items() if name != "step"} == {"step"}
        assert names - tables <= definitions.keys()


def test_steps_are_those_of_the_local_file(chain: Chain) -> None:
    lines = (seed(chain) / "metrics.jsonl").read_text().splitlines()
    local: dict[int, Any] = {line["step"]: line for line in map(json.loads, lines)}
    there: dict[int, Any] = {}
    for row in read.history(seed(chain)):  # that of the tables, too
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        there.setdefault(row["step"], {}).update(numbers)
    assert there.keys() == local.keys() == {2, 4}
    for step, line in local.items():
        assert there[step].items() >= line.items()


def test_groups_have_rates_and_gradients_and_phases_have_bands(chain: Chain) -> None:
    groups = ["embeddings", "block_1", "block_2", "head"]
    rows = {row["step"]: row for row in read.history(seed(chain)) if "train/loss" in row}
    for row in rows.values():
        rates = {name for name in row if name.startswith("lr/")}
        assert rates == {f"lr/{name}" for name in groups}
        boundary = row["frozen/boundary"]
        norms = {name for name in row if name.startswith("train/gradient_norm/")}
        assert norms == {f"train/gradient_norm/{name}" for name in groups[boundary:]}
        whole = sum(row[name] ** 2 for name in norms) ** 0.5
        assert abs(whole - row["train/gradient_norm"]) < 1e-4 * whole
        assert row["perf/peak_gib"] > 0
    assert [row["frozen/phase"] for row in rows.values()] == [1, 3]
    assert [row["data/examples_seen"] for row in rows.values()] == [16, 32]


def test_summary_holds_the_best_values_and_the_results(chain: Chain) -> None:
    summary, results = read.summary(seed(chain)), RunFolder(seed(chain)).read_results()
    assert summary["metrics"] == results["metrics"]
    accuracy = results["metrics"]["accuracy"]
    assert summary["best/accuracy"] == summary["best/headline"] == accuracy
    losses = [row["val/loss"] for row in read.history(seed(chain)) if "val/loss" in row]
    assert summary["val/loss"] == {"min": min(losses)}
    best = read.summary(chain.pretrained)["best/perplexity"]
    assert best == RunFolder(chain.pretrained).read_results()["metrics"]["perplexity"]


def test_seeds_are_one_group_and_runs_of_their_own(chain: Chain) -> None:
    one, two = (read.run_record(seed(chain, number)) for number in (1, 2))
    assert one.run_group == two.run_group == "classify/reviews · adapted · tuned"
    assert (one.display_name, two.display_name) == ("tuned/seed-1", "tuned/seed-2")
    assert one.run_id != two.run_id
    assert one.job_type == "fine-tune"
    jobs = [read.run_record(folder).job_type for folder in (chain.pretrained, chain.adapted)]
    assert jobs == ["pretrain", "adapt"]


def test_answers_are_tables_of_limited_size(chain: Chain) -> None:
    columns, rows = read.table(seed(chain), "predictions/validation")
    assert columns[:6] == ["id", "text", "gold", "prediction", "right", "probability"]
    assert len(rows) == 7
    _, counts = read.table(seed(chain), "confusion/validation_table")
    assert sum(row[2] for row in counts) == 40
    columns, scores = read.table(seed(chain), "classes/validation")
    assert columns == ["class", "precision", "recall", "f1", "examples"]
    assert [row[0] for row in scores] == ["False", "True"]


def test_what_a_run_starts_from_is_what_the_one_before_made(chain: Chain) -> None:
    pretrained, adapted, tuned = (
        read.artifacts(folder) for folder in (chain.pretrained, chain.adapted, seed(chain))
    )
    for before, after in ((pretrained, adapted), (adapted, tuned)):
        made, used = before["encoder"], after["used encoder"]
        assert (made.name, made.digest) == (used.name, used.digest)
    assert pretrained["tokenizer"].digest == tuned["used tokenizer"].digest
    assert pretrained["encoder"].name != adapted["encoder"].name
    assert pretrained.keys() == {"encoder", "tokenizer", "corpus"}
    assert adapted.keys() == {"used encoder", "used tokenizer", "encoder", "corpus"}


def test_predictions_are_handed_over_and_the_checkpoint_on_request(chain: Chain) -> None:
    tuned = read.artifacts(seed(chain))
    kinds = {"used encoder", "used tokenizer", "encoder", "model", "predictions"}
    assert tuned.keys() == kinds
    assert tuned["predictions"].name == "predictions-tuned-seed-1"
    entries = {entry.path: entry.local_path for entry in tuned["predictions"].manifest.contents}
    folder = seed(chain) / "predictions"
    assert entries == {name: str(folder / name) for name in ("validation.json", "validation.jsonl")}
    files = {entry.path for entry in tuned["model"].manifest.contents}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files


def test_every_panel_shows_what_some_run_logs(chain: Chain) -> None:
    names: set[str] = set()
    for folder in (chain.pretrained, chain.adapted, seed(chain)):
        names |= logged(folder) | read.summary(folder).keys()
        names |= {f"summary.{name}" for name in read.summary(folder)}
        config = read.items(read.run_record(folder).config.update)
        names |= {f"config.{name}" for name in config}
        names |= {f"config.{name}.{key}" for name in config for key in _keys(config[name])}
    panels = [panel for part in (*SECTIONS, *CHAPTERS) for panel in part.panels]
    for panel in panels:
        assert _is_known(panel, names), panel


def _keys(value: Any) -> list[str]:
    return [*value] if isinstance(value, dict) else []


def _is_known(panel: Panel, names: set[str]) -> bool:
    if panel.pattern is not None:
        return any(re.search(panel.pattern, name) for name in names)
    optional = {"perf/ceiling_share", "nbest/validation", "options/validation"}
    tables = {"predictions/validation", "confusion/validation", "classes/validation"}
    return {*panel.names, *filter(None, [panel.group])} <= names | optional | tables | {"run.group"}
