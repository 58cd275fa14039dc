"""Answers on file are taken only where the checkpoint that is there gave them to the data there."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from finetune.runs.predictions import read_origin, read_predictions
from tests.made.texts import sentences

if TYPE_CHECKING:
    from tests.made.commands import Call, Outcome
    from tests.made.world import World


@pytest.fixture
def data(world: World, tmp_path: Path) -> Path:
    """The data with a test file."""
    folder = Path(shutil.copytree(world.data, tmp_path / "data"))
    write_test(folder, sentences(5, 12))
    return folder


def write_test(data: Path, texts: list[str]) -> None:
    rows = [f"{number}\t{text}" for number, text in enumerate(texts)]
    (data / "glue_data" / "SST-2" / "test.tsv").write_text("\n".join(["index\tsentence", *rows]))


@pytest.fixture
def run(world: World, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world.tuned, tmp_path / "run"))


@pytest.fixture
def submit(run: Path, data: Path, tmp_path: Path, call: Call) -> Any:
    """Hand a run in; returns what was told and what is in the zip."""

    def pack() -> tuple[Outcome, str]:
        out = tmp_path / "glue.zip"
        allowed = ("--allow-subset", "--allow-missing")
        outcome = call("submit", run, "--out", out, "--data", data, *allowed)
        assert outcome.status == 0, outcome.err
        with zipfile.ZipFile(out) as archive:
            return outcome, archive.read("SST-2.tsv").decode()

    return pack


@pytest.fixture
def other_best(world: World, tmp_path: Path, call: Call) -> Path:
    """Weights that answer the other way round, as an earlier best checkpoint may."""
    from safetensors.torch import load_file, save_file

    best = Path(shutil.copytree(world.tuned / "checkpoints" / "best", tmp_path / "other"))
    weights = load_file(best / "model.safetensors")
    negated = {k: -v if k.startswith("head.layers.3") else v for k, v in weights.items()}
    assert any(k.startswith("head.layers.3") for k in weights), list(weights)
    save_file(negated, best / "model.safetensors", metadata={"format": "pt"})
    from finetune.files.checksums import write_checksums

    write_checksums(best)
    return best


def test_answers_of_an_earlier_checkpoint_are_not_handed_in(
    run: Path, other_best: Path, submit: Any
) -> None:
    first, right = submit()
    assert "no answers on file yet" in first.err
    best, kept = run / "checkpoints" / "best", run / "checkpoints" / "kept"
    best.rename(kept)
    shutil.copytree(other_best, best)
    second, other = submit()
    assert "test.jsonl: its answers are of another checkpoint; answering by" in second.err
    assert other != right
    shutil.rmtree(best)
    kept.rename(best)
    _, again = submit()
    assert again == right
    quiet, same = submit()
    assert same == right
    assert "answering" not in quiet.err


def test_answers_to_another_test_file_are_not_handed_in(run: Path, data: Path, submit: Any) -> None:
    submit()
    write_test(data, sentences(6, 12))
    outcome, _ = submit()
    assert "its answers are to other data" in outcome.err
    rows = read_predictions(run / "predictions" / "test.jsonl")
    assert [row["id"] for row in rows] == list(range(12))
    write_test(data, sentences(5, 12))
    assert "its answers are to other data" in submit()[0].err


def test_answers_to_a_file_that_was_scored_as_test_are_not_handed_in(
    world: World, run: Path, data: Path, submit: Any, call: Call
) -> None:
    _, right = submit()
    dev = world.data / "glue_data" / "SST-2" / "dev.tsv"
    call("evaluate", run, "--file", dev)
    assert submit()[1] == right


def test_answers_without_a_record_or_changed_by_hand_are_given_again(
    run: Path, submit: Any
) -> None:
    _, right = submit()
    record = run / "predictions" / "test.json"
    assert read_origin(record.with_suffix(".jsonl")) is not None
    for damage in ("", "{", json.dumps({**json.loads(record.read_text()), "data": 1})):
        record.write_text(damage)
        assert submit()[1] == right
    record.unlink()
    outcome, answers = submit()
    assert answers == right
    assert "nothing beside it says" in outcome.err
    path = record.with_suffix(".jsonl")
    path.write_text(path.read_text().replace('"positive"', '"negative"'))
    assert submit()[1] == right


def test_a_checkpoint_that_is_gone_is_one_line_and_no_zip(
    run: Path, data: Path, tmp_path: Path, submit: Any, call: Call
) -> None:
    submit()
    (tmp_path / "glue.zip").unlink()
    shutil.rmtree(run / "checkpoints")
    allowed = ("--allow-subset", "--allow-missing", "--data", data)
    outcome = call("submit", run, "--out", tmp_path / "glue.zip", *allowed)
    assert outcome.status == 2
    assert "a run without checkpoints" in outcome.complaint
    assert not (tmp_path / "glue.zip").exists()


def test_resuming_names_answers_of_an_earlier_checkpoint(
    world: World, run: Path, other_best: Path, submit: Any, call: Call
) -> None:
    submit()
    assert "may contain answers of another" not in call(*world.glue(run, "--resume")).err
    path = run / "predictions" / "test.jsonl"
    record = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**record, "checkpoint": "another"}))
    outcome = call(*world.glue(run, "--resume"))
    assert outcome.status == 0
    assert f"warning: {path} may contain answers of another checkpoint" in outcome.err


@pytest.mark.parametrize("command", ["compare", "report"])
def test_answers_that_the_results_are_not_of_are_named(
    command: str, world: World, run: Path, tmp_path: Path, call: Call
) -> None:
    page = tmp_path / "page.html"
    words = {
        "compare": ["compare", run, world.tuned],
        "report": ["report", run, "--out", page],
    }[command]
    warning = (
        "predictions/validation.jsonl contains other answers than those scored in results.json"
    )

    def told() -> str:
        outcome = call(*words)
        assert outcome.status == 0, outcome.err
        return outcome.err + (page.read_text() if page.is_file() else "")

    assert warning not in told()
    other = tmp_path / "other.tsv"
    header, *rows = (world.data / "glue_data" / "SST-2" / "dev.tsv").read_text().splitlines()
    labels = [row.partition("\t")[2] for row in rows]
    pairs = zip(sentences(7, len(rows)), labels, strict=True)
    other.write_text("\n".join([header, *(f"{text}\t{label}" for text, label in pairs)]))
    assert call("evaluate", run, "--split", "validation", "--file", other).status == 0
    assert warning in told()
    assert call("evaluate", run).status == 0
    assert warning not in told()


def test_a_diagnostic_set_is_answered_again_when_its_run_has_changed(
    world: World, tmp_path: Path, call: Call
) -> None:
    header = "index\tsentence1\tsentence2"
    pairs = ("the cat\ta cat\tneutral", "a dog\ta dog\tentailment", "red\tblue\tcontradiction")
    rows = "\tgold_label" + "".join(f"\n{number}\t{pair}" for number, pair in enumerate(pairs))
    folder = tmp_path / "pairs" / "glue_data"
    for name in ("train", "dev_matched", "dev_mismatched"):
        path = folder / "MNLI" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(header + rows)
    ax = folder / "diagnostic" / "diagnostic.tsv"
    ax.parent.mkdir()
    ax.write_text(f"{header}\n0\tthe cat\ta cat\n1\ta dog\tred\n")
    mnli = tmp_path / "mnli"
    words = world.glue(mnli, "--max-steps", 1, "--data", folder.parent)
    assert call(words[0], "mnli", *words[2:]).status == 0
    allowed = ("--allow-subset", "--allow-missing")

    def told() -> str:
        outcome = call("submit", mnli, "--out", tmp_path / "glue.zip", *allowed)
        assert outcome.status == 0, outcome.err
        return outcome.err

    assert "ax.jsonl: no answers on file yet" in told()
    assert "answering" not in told()
    ax.write_text(f"{header}\n0\tthe cat\ta cat\n1\ta dog\tblue\n")
    assert "ax.jsonl: its answers are to other data" in told()
    assert call(words[0], "mnli", *words[2:], "--overwrite", "--seed", 2).status == 0
    assert "ax.jsonl: no answers on file yet" in told()


def test_run_on_a_part_of_each_split_answers_all_test_examples(run: Path, submit: Any) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("limit: null", "limit: 3"))
    assert submit()[1].count("\n") == 13  # the header, and each of 12
