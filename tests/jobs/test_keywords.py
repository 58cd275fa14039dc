"""`finetune.fit` as a Python user calls it: settings as keywords, data in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest

import finetune
from finetune.errors import ConfigError, DataError
from finetune.jobs import keywords, scoring
from tests.made.texts import has_the, learned_tokenizer, sentences

ROWS = [
    {"review": text, "sentiment": "with" if has_the(text) else "without"}
    for text in sentences(1, 24)
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a very small run from random weights."""
    folder = tmp_path_factory.mktemp("tokenizer")
    learned_tokenizer().save(folder)
    return {
        "encoder": "none",
        "tokenizer": folder,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 16,
        "max_length": 16,
        "max_epochs": 1,
        "progress": False,
        "wandb": False,
        "optimizer": finetune.OptimizerConfig(learning_rate=1e-3),
    }


@pytest.fixture(scope="module")
def run(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("runs") / "reviews"
    finetune.fit(
        "classify",
        train=pd.DataFrame(ROWS[:16]),
        validation=datasets.Dataset.from_list(ROWS[16:]),
        text="review",
        label="sentiment",
        out=out,
        **settings,
    )
    return out


def again(run: Path, settings: dict[str, Any], **changes: Any) -> Any:
    data = {"train": ROWS[:16], "validation": ROWS[16:]}
    keywords = {"text": "review", "label": "sentiment", "out": run, **settings, **data, **changes}
    return finetune.fit("classify", **keywords)


def test_data_in_memory_are_in_the_folder_of_the_run(run: Path) -> None:
    lines = (run / "data" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == ROWS[:16]
    settings = finetune.FitRun.from_yaml(run / "config.yaml")
    assert settings.optimizer.learning_rate == 1e-3
    assert settings.length.max_epochs == 1
    results = finetune.evaluate(run)
    assert results["examples"] == 8
    assert finetune.load(run).predict(ROWS[0]["review"])[0]["prediction"] in ("with", "without")


def test_a_run_on_data_in_memory_is_resumed_with_the_same_data_only(
    run: Path, settings: dict[str, Any]
) -> None:
    recorded = json.loads((run / "results.json").read_text())["metrics"]
    assert again(run, settings, resume=True)["metrics"] == recorded
    with pytest.raises(ConfigError, match=r"train: expected the data that the run began with"):
        again(run, settings, resume=True, train=ROWS[:15])
    assert len((run / "data" / "train.jsonl").read_text().splitlines()) == 16


def test_a_finished_run_and_its_data_are_not_replaced_by_accident(
    run: Path, settings: dict[str, Any]
) -> None:
    before = (run / "data" / "train.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="already contains a run"):
        again(run, settings, train=ROWS[:4])
    assert (run / "data" / "train.jsonl").read_bytes() == before


def test_overwrite_replaces_the_run_and_its_data(settings: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    for count in (8, 16):
        results = again(out, settings, train=ROWS[:count], overwrite=count == 16)
        assert results["examples"] == 8
        assert len((out / "data" / "train.jsonl").read_text().splitlines()) == count


@pytest.mark.parametrize("mode", ["dry_run", "find_lr"])
def test_what_trains_nothing_leaves_the_data_of_a_run(
    mode: str, run: Path, settings: dict[str, Any]
) -> None:
    before = contents(run / "data")
    again(run, settings, train=ROWS[:8], overwrite=True, **{mode: True})
    assert contents(run / "data") == before


def test_dry_run_writes_no_data(settings: dict[str, Any], tmp_path: Path) -> None:
    assert again(tmp_path / "run", settings, dry_run=True)["task"].startswith("classify/")
    assert not (tmp_path / "run").exists()


def test_saved_copy_has_the_data_too(run: Path, tmp_path: Path) -> None:
    finetune.load(run).save(tmp_path / "copy")
    assert contents(tmp_path / "copy" / "data") == contents(run / "data")
    settings = finetune.FitRun.from_yaml(tmp_path / "copy" / "config.yaml")
    assert settings.train == str(tmp_path / "copy" / "data" / "train.jsonl")


@pytest.mark.parametrize("seeds", [None, [1, 2]])
def test_moved_run_reads_its_own_data_and_not_those_of_the_run_in_its_place(
    seeds: list[int] | None, settings: dict[str, Any], tmp_path: Path
) -> None:
    again(tmp_path / "run", settings, seeds=seeds)
    before = finetune.evaluate(tmp_path / "run")
    moved = (tmp_path / "run").rename(tmp_path / "old")
    again(tmp_path / "run", settings, validation=ROWS[20:])
    assert finetune.evaluate(moved)["metrics"] == before["metrics"]
    one = moved / "seed-1" if seeds else moved
    assert finetune.evaluate(one)["examples"] == 8


def test_other_processes_of_a_run_read_files_of_their_own(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[int] = []
    monkeypatch.setattr(keywords, "join", joined.append)  # otherwise each took itself for the first
    monkeypatch.setattr(keywords, "is_first_process", lambda: joined != [2])
    monkeypatch.setattr(
        keywords.fine_tuning, "fit", lambda run: {"rows": Path(run.train).read_text().splitlines()}
    )
    assert len(again(tmp_path / "run", settings, devices=2)["rows"]) == 16
    assert not (tmp_path / "run").exists()


def test_half_a_surrogate_pair_is_named_by_its_row(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    rows = [*ROWS[:8], {"review": "a \ud800", "sentiment": "with"}]
    with pytest.raises(DataError, match=r"train\.jsonl:9: expected text, got half of a surrogate"):
        again(tmp_path / "run", settings, train=rows)


def test_run_that_cannot_be_replaced_keeps_its_data(run: Path, settings: dict[str, Any]) -> None:
    before = contents(run / "data")
    with pytest.raises(DataError, match=r"train\.jsonl:9: expected a label"):
        again(run, settings, train=[*ROWS[:8], {"review": "a"}], overwrite=True)
    assert contents(run / "data") == before


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_data_that_were_refused_can_be_given_again(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(DataError, match=r"data/train\.jsonl"):
        again(out, settings, train=[{"review": "a", "sentiment": None}])
    assert again(out, settings, dry_run=True)["task"].startswith("classify/")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_epoch": 3}, r"unknown setting 'max_epoch'; did you mean 'max_epochs'\?"),
        ({"lr": 1e-3}, "unknown setting 'lr'; it is learning_rate here"),
        ({"max_epochs": "many"}, "^max_epochs: expected .*, got 'many'"),
        ({"encoder": None}, "expected text|encoder is missing|--encoder"),
    ],
)
def test_wrong_keywords_are_refused(
    keywords: dict[str, Any], message: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        again(tmp_path / "run", settings, **keywords)
    assert not (tmp_path / "run").exists()


def test_a_shape_beside_a_checkpoint_is_named_by_its_keyword(run: Path, tmp_path: Path) -> None:
    message = (
        f"^intermediate_size: expected no settings of the encoder beside encoder {run}, which has"
    )
    with pytest.raises(ConfigError, match=message):
        finetune.fit("classify", train=ROWS, encoder=run, intermediate_size=8, out=tmp_path / "run")


def test_what_is_missing_or_given_twice_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="encoder is missing; give encoder="):
        finetune.fit("classify", train=ROWS)
    with pytest.raises(ConfigError, match=r"expected a FitRun or .*, got both \(max_epochs\)"):
        finetune.fit(finetune.FitRun("none", "glue/cola"), max_epochs=3)
    with pytest.raises(ConfigError, match="task 'glue': expected FAMILY/NAME; choose one of"):
        finetune.fit("glue", encoder="none")


def test_a_file_of_settings_is_read_for_the_family_of_its_task(tmp_path: Path) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("table: {text_column: review}\nlength: {max_epochs: 2}\n")
    run = finetune.FitRun.from_yaml(file, task="classify/mine", encoder="none", max_epochs=4)
    assert (run.task, run.length.max_epochs) == ("classify/mine", 4)
    assert type(run).__name__ == "ClassifyRun"
    with pytest.raises(ConfigError, match="unknown key 'table'"):
        finetune.FitRun.from_yaml(file, task="glue/cola", encoder="none")


def test_best_checkpoint_is_not_computed_again_right_after_its_validation(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out gives the very same bits: `evaluate` computes it."""
    asked = []
    computed = scoring.predict

    def predict(*given: Any) -> Any:
        asked.append(given)
        return computed(*given)

    monkeypatch.setattr(scoring, "predict", predict)
    again(tmp_path / "run", settings)  # one epoch: its validation is the last and the best
    assert not asked
    answers = tmp_path / "run" / "predictions" / "validation.jsonl"
    before = answers.read_bytes()
    results = json.loads((tmp_path / "run" / "results.json").read_bytes())
    assert finetune.evaluate(tmp_path / "run")["metrics"] == results["metrics"]
    assert asked
    assert answers.read_bytes() == before


def test_best_checkpoint_of_an_earlier_validation_is_computed(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    computed = scoring.predict
    monkeypatch.setattr(scoring, "predict", lambda *all: asked.append(all) or computed(*all))
    # With such a rate nothing is learned: the second validation is no better than the first.
    rate = finetune.OptimizerConfig(learning_rate=1e-9)
    again(tmp_path / "run", settings, max_epochs=2, optimizer=rate)
    assert asked


def test_best_checkpoint_is_computed_where_its_validation_read_cached_states(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    computed = scoring.predict
    monkeypatch.setattr(scoring, "predict", lambda *all: asked.append(all) or computed(*all))
    again(tmp_path / "run", settings, unfreeze="head", cache_dir=tmp_path / "cache")
    assert asked
