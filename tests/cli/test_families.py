"""Every family of tasks from its files to a score, to answers, and back."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import finetune
from finetune.checkpoints.folder import load_checkpoint
from finetune.metrics import tuned_threshold
from finetune.runs.predictions import read_predictions
from tests.made.commands import ROOT
from tests.made.families import Files, write_families
from tests.made.texts import write_lines

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses, Start
    from tests.made.world import World


@dataclass(frozen=True)
class Kind:
    """How a family is called."""

    words: tuple[str, ...]
    files: tuple[str, ...] = ()
    spans: bool = False

    def command(self, world: World, files: Files, out: Path, *more: object) -> list[str]:
        given: list[object] = []
        for flag, name in zip(("--train", "--validation", "--test"), self.files, strict=False):
            given += [flag, files.own(name)]
        data = given or ["--data", files.data]
        config = files.span_config if self.spans else files.config
        start = ["--encoder", world.pretrained, "--config", config, "--out", out]
        return [str(word) for word in [*self.words, *data, *start, *more]]


def own(suffix: str) -> tuple[str, ...]:
    return tuple(f"{split}{suffix}" for split in ("train", "validation", "test"))


KINDS = {
    "squad 1.1": Kind(("squad", "1.1"), spans=True),
    "squad 2.0": Kind(("squad", "2.0"), spans=True),
    "race all": Kind(("race", "all")),
    "race middle": Kind(("race", "middle")),
    "classify": Kind(("classify",), own(".csv")),
    "answer": Kind(("answer",), own("-answers.jsonl"), spans=True),
    "choose": Kind(("choose",), own("-choices.jsonl")),
    "write": Kind(("write", "--max-target-length", "16"), own("-pairs.jsonl")),
}
TASKS = {
    "classify": "classify/own",
    "answer": "answer/answers",
    "choose": "choose/choices",
    "write": "write/pairs",
}
"""Named after the folder `own`, or the training file without its split."""
EVERY_KIND = pytest.mark.parametrize("name", KINDS)
METRICS = {
    "squad 1.1": {"exact_match", "f1"},
    "race all": {"accuracy", "accuracy_middle", "accuracy_high"},
    "race middle": {"accuracy"},
    "classify": {"accuracy", "macro_f1", "macro_precision", "macro_recall", "auc"},
    "answer": {"exact_match", "f1"},
    "choose": {"accuracy"},
    "write": {"word_error_rate", "character_error_rate", "exact_match", "bleu", "chrf", "rougeL"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_families(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def runs(world: World, files: Files, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each family, made once."""
    from tasks.__main__ import main

    root: Path = tmp_path_factory.mktemp("runs")
    cache = ["--cache-dir", str(root / "cache")]
    made = {}
    for name, kind in KINDS.items():
        made[name] = root / name.replace(" ", "-")
        assert main([*kind.command(world, files, made[name]), *cache]) == 0
    return made


def results_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


@EVERY_KIND
def test_a_run_leaves_results_answers_and_what_was_read(name: str, runs: dict[str, Path]) -> None:
    results = results_of(runs[name])
    assert results["task"] == TASKS.get(name, name.replace(" ", "/"))
    assert METRICS.get(name, set()) <= set(results["metrics"])
    unbounded = ("threshold", "error_rate")  # a text may be longer than the right one
    bounded = {k: v for k, v in results["metrics"].items() if not k.endswith(unbounded)}
    assert all(0 <= value <= 1 for value in bounded.values())
    assert set(results["baselines"]["trivial"]) == set(results["metrics"])
    data = results["data"]
    assert data["train"]["sequences"] >= data["train"]["examples"] > 0
    rows = read_predictions(runs[name] / "predictions" / "validation.jsonl")
    assert len(rows) == results["examples"] == data["validation"]["examples"]


@EVERY_KIND
def test_evaluate_gives_the_numbers_of_the_run(
    name: str, runs: dict[str, Path], call: Call
) -> None:
    assert call("evaluate", runs[name]).json["metrics"] == results_of(runs[name])["metrics"]


@EVERY_KIND
def test_the_same_seed_gives_the_same_numbers(
    name: str, world: World, files: Files, runs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    again = tmp_path / "again"
    assert call(*KINDS[name].command(world, files, again)).status == 0
    assert results_of(again)["metrics"] == results_of(runs[name])["metrics"]
    kept = (runs[name] / "predictions" / "validation.jsonl").read_bytes()
    assert (again / "predictions" / "validation.jsonl").read_bytes() == kept


@EVERY_KIND
def test_predict_answers_as_evaluate_does(
    name: str, files: Files, runs: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    rows = inputs_of(name, files)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--input", source, "--output", target, "--batch-size", "3"]
    assert call("predict", runs[name], *words).status == 0
    expected = read_predictions(runs[name] / "predictions" / "validation.jsonl")
    answers = read_predictions(target)
    assert [answer["prediction"] for answer in answers] == [row["prediction"] for row in expected]
    for answer, row in zip(answers, expected, strict=True):
        if "probabilities" in row:
            found, wanted = answer["probabilities"], row["probabilities"]
            assert list(found) == list(wanted)
            np.testing.assert_allclose(list(found.values()), list(wanted.values()), atol=1e-5)
        if "nbest" in row:
            assert [entry["text"] for entry in answer["nbest"]] == [
                entry["text"] for entry in row["nbest"]
            ]
    piped = finetune.load(runs[name]).predict(rows)
    assert [answer["prediction"] for answer in piped] == [row["prediction"] for row in expected]


def inputs_of(name: str, files: Files) -> list[dict[str, Any]]:
    """The validation split as the rows that a user would give."""
    if name.startswith("squad"):
        path = files.data / "squad" / f"dev-v{name.split()[1]}.json"
        return [
            {"id": qa["id"], "question": qa["question"], "context": paragraph["context"]}
            for paragraph in json.loads(path.read_text())["data"][0]["paragraphs"]
            for qa in paragraph["qas"]
        ]
    if name.startswith("race"):
        from tasks.race.task import race_task

        return [
            {"context": passage, "question": question, "options": options}
            for passage, question, *options in (
                example.texts
                for example in race_task(name.split()[1], files.data).examples("validation")
            )
        ]
    suffix = KINDS[name].files[1]
    lines = files.own(suffix).read_text().splitlines()
    if suffix.endswith(".csv"):
        return [{"text": line.rpartition(",")[0]} for line in lines[1:]]
    return [{k: v for k, v in json.loads(line).items() if "answer" not in k} for line in lines]


@EVERY_KIND
def test_one_example_alone_is_answered_as_among_others(
    name: str, files: Files, runs: dict[str, Path]
) -> None:
    rows = inputs_of(name, files)
    predictor = finetune.load(runs[name], batch_size=5)  # 5 divides the number of no set here
    among = predictor.predict(rows)
    for number in (0, len(rows) - 1):
        (alone,) = predictor.predict([rows[number]])
        assert alone["prediction"] == among[number]["prediction"]


@pytest.mark.parametrize("name", ["classify", "answer", "choose", "write"])
def test_a_test_file_that_is_named_is_scored_too(
    name: str, runs: dict[str, Path], call: Call
) -> None:
    test = results_of(runs[name])["test"]
    assert test["examples"] == 8
    assert len(read_predictions(runs[name] / "predictions" / "test.jsonl")) == 8
    again = call("evaluate", runs[name], "--split", "test").json["metrics"]
    assert {key: value for key, value in again.items() if "/" not in key} == test["metrics"]


def test_beams_are_chosen_when_a_run_is_used(
    runs: dict[str, Path], files: Files, call: Call, refuses: Refuses
) -> None:
    run, source = runs["write"], files.own("validation-pairs.jsonl")
    before = (run / "predictions" / "validation.json").read_text()
    greedy = call("evaluate", run, "--beams", 1).json["metrics"]
    rows = read_predictions(run / "predictions" / "validation.jsonl")
    assert (run / "predictions" / "validation.json").read_text() != before  # of another search
    (line, *_) = call("predict", run, "--input", source, "--beams", 1).out.splitlines()
    assert json.loads(line)["prediction"] == rows[0]["prediction"]
    assert call("evaluate", run).json["metrics"] == results_of(run)["metrics"]
    assert set(greedy) == set(results_of(run)["metrics"])
    assert (run / "predictions" / "validation.json").read_text() == before
    message = "--beams is for runs of finetune write, .*, got a run of classify/own; remove it"
    refuses(message, "evaluate", runs["classify"], "--beams", 2)


def test_the_decoder_is_counted_and_not_exported(
    runs: dict[str, Path], call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    (counts,) = call("describe", runs["write"], "--json").json.values()
    weights = load_checkpoint(runs["write"]).weights()
    own = sum(tensor.numel() for name, tensor in weights.items() if name.startswith("head."))
    assert counts["task_head"]["parameters"] == own
    described = call("describe", runs["write"]).out
    assert "The decoder has" in described
    assert "export formats: none (ONNX lacks a head that writes texts" in described
    for form in ("hf", "onnx"):
        message = f".*: --format {form} lacks a head that writes texts; predict with finetune .*"
        refuses(message, "export", runs["write"], "--format", form, "--out", tmp_path / "out")


def test_questions_with_unequally_many_options_go_all_the_way(
    world: World, files: Files, tmp_path: Path, call: Call
) -> None:
    uneven = dataclasses.replace(files, data=tmp_path / "data")
    for split in ("train", "validation", "test"):
        lines = files.own(f"{split}-choices.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows[::3]:  # A is right
            row["options"] = row["options"][:2]
        write_lines(uneven.own(f"{split}-choices.jsonl"), rows)
    run, plain = tmp_path / "run", tmp_path / "plain"
    note = "options of a question: 2 in 23, 3 in 41; options that it lacks have probability 0\n"
    flags = ["--unfreeze", "head", "--r-drop", "1", "--batch-size", "5"]
    done = call(*KINDS["choose"].command(world, uneven, run, *flags))
    assert done.status == 0, done.err
    assert note in done.err
    rows = read_predictions(run / "predictions" / "validation.jsonl")
    assert [len(row["probabilities"]) for row in rows[:4]] == [2, 3, 3, 2]
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)
    assert call("evaluate", run).json["metrics"] == results_of(run)["metrics"]
    words = KINDS["choose"].command(world, uneven, plain, *flags, "--no-cache")
    assert call(*words).status == 0  # frozen layers give the same states from the cache
    assert results_of(plain)["metrics"] == results_of(run)["metrics"]
    source, target = uneven.own("test-choices.jsonl"), tmp_path / "answers.jsonl"
    assert call("predict", run, "--input", source, "--output", target).status == 0
    assert call("report", run, "--out", tmp_path / "page.html").status == 0
    assert call("baseline", *words[: words.index("--encoder")]).status == 0


def test_spans_leave_the_files_of_the_official_script(runs: dict[str, Path]) -> None:
    for name, wanted in (("squad 1.1", 2), ("squad 2.0", 3)):
        folder = runs[name] / "submission" / "validation"
        names = ["nbest_predictions.json", "null_odds.json", "predictions.json"]
        assert sorted(path.name for path in folder.iterdir()) == [
            file for file in names if wanted == 3 or "null" not in file
        ]
        texts = json.loads((folder / "predictions.json").read_text())
        rows = read_predictions(runs[name] / "predictions" / "validation.jsonl")
        assert texts == {row["id"]: row["prediction"] for row in rows}


def test_the_null_threshold_is_tuned_stored_and_used(runs: dict[str, Path]) -> None:
    run = runs["squad 2.0"]
    decision = results_of(run)["decision"]
    assert decision["tuned_on"] == "validation"
    stored = json.loads((run / "checkpoints" / "best" / "config.json").read_text())["decision"]
    assert stored == {"null_threshold": decision["null_threshold"]}
    for row in read_predictions(run / "predictions" / "validation.jsonl"):
        assert (row["prediction"] == "") == (row["null_odds"] > stored["null_threshold"])
    assert "decision" not in results_of(runs["squad 1.1"])


def test_the_null_threshold_is_tuned_on_the_answers_that_are_given(
    world: World, files: Files, tmp_path: Path, call: Call
) -> None:
    """Half precision while training, and whole precision afterwards, give other odds."""
    command = KINDS["squad 2.0"].command(world, files, tmp_path / "run")
    more = ["--precision", "bf16-mixed", "--cache-dir", tmp_path / "cache", "--unfreeze", "head"]
    assert call(*command, *more).status == 0
    stored = load_checkpoint(tmp_path / "run").decision["null_threshold"]
    answers = read_predictions(tmp_path / "run" / "predictions" / "validation.jsonl")
    odds = [row["null_odds"] for row in answers]
    assert stored == tuned_threshold(answers)
    assert stored not in odds
    assert call("evaluate", tmp_path / "run").status == 0
    again = read_predictions(tmp_path / "run" / "predictions" / "validation.jsonl")
    assert [row["prediction"] for row in again] == [row["prediction"] for row in answers]


def test_withheld_answers_give_predictions_and_no_score(
    runs: dict[str, Path], files: Files, call: Call, refuses: Refuses
) -> None:
    withheld = files.data / "squad" / "test-v2.0.json"
    outcome = call("evaluate", runs["squad 2.0"], "--file", withheld)
    assert outcome.status == 0
    assert outcome.json["metrics"] == {}
    assert len(read_predictions(runs["squad 2.0"] / "predictions" / "test.jsonl")) == 4
    assert (runs["squad 2.0"] / "submission" / "test" / "predictions.json").is_file()
    words = ["evaluate", runs["squad 2.0"], "--file", withheld, "--split", "tset"]
    refuses("--file replaces train, validation, test, got --split tset", *words)


def test_a_finished_table_run_needs_its_training_file_no_more(
    world: World, files: Files, tmp_path: Path, call: Call
) -> None:
    moved = shutil.copytree(files.own(""), tmp_path / "own")
    words = [
        word.replace(str(files.own("")), str(moved))
        for word in KINDS["classify"].command(world, files, tmp_path / "run")
    ]
    assert call(*words).status == 0
    shutil.rmtree(moved)
    answers = finetune.load(tmp_path / "run").predict(["the cat", "a dog"])
    assert {answer["prediction"] for answer in answers} <= {"with the", "without"}
    assert [answer["id"] for answer in answers] == [0, 1]


def test_the_report_of_classes_is_in_the_results(runs: dict[str, Path]) -> None:
    report = results_of(runs["classify"])["report"]
    assert set(report["per_class"]) == {"with the", "without"}
    assert np.sum(report["confusion_matrix"]["counts"]) == 16


def test_the_diagnostic_set_is_answered_and_not_scored(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    mnli = tmp_path / "data" / "glue_data" / "MNLI"
    mnli.mkdir(parents=True)
    lines = ["index\tsentence1\tsentence2\tgold_label"]
    names = ("entailment", "neutral", "contradiction")
    lines += [f"{n}\tthe cat\ta dog\t{names[n % 3]}" for n in range(12)]
    for split in ("train", "dev_matched", "dev_mismatched"):
        (mnli / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    (mnli.parent / "diagnostic").mkdir()
    rows = [f"{n}\tthe bird\tthe tree" for n in range(5)]
    (mnli.parent / "diagnostic" / "diagnostic.tsv").write_text(
        "\n".join(["index\tsentence1\tsentence2", *rows])
    )
    data = ["--data", tmp_path / "data", "--config", world.glue_config]
    run, ax = tmp_path / "mnli", tmp_path / "ax"
    assert call("glue", "mnli", "--encoder", world.pretrained, *data, "--out", run).status == 0
    assert call("glue", "ax", "--encoder", run, *data, "--out", ax).status == 0
    # Any run may be started from: the head is built for the task.
    onward = ["glue", "sst2", "--encoder", run, "--config", world.glue_config, "--data", world.data]
    told = call(*onward, "--out", tmp_path / "onward")
    assert told.status == 0
    assert "left out: the encoder's classification head of glue/mnli; this task" in told.err
    answers = read_predictions(ax / "predictions" / "ax.jsonl")
    assert [answer["id"] for answer in answers] == [0, 1, 2, 3, 4]
    assert (ax / "submission" / "AX.tsv").read_text().startswith("index\tprediction\n0\t")
    outcome = call("evaluate", ax)
    assert outcome.status == 2
    assert "unlabelled" in outcome.complaint or "without" in outcome.complaint
    no_run = "glue/ax is not trained on: name a fine-tuned run by --encoder RUN"
    refuses(no_run, "glue", "ax", "--encoder", "none", *data, "--out", tmp_path / "x")
    other = "glue/ax: expected a head for the labels .*"
    refuses(other, "glue", "ax", "--encoder", world.tuned, *data, "--out", tmp_path / "x")


def test_wnli_is_not_trained_unless_asked(world: World, tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "data" / "glue_data" / "WNLI"
    folder.mkdir(parents=True)
    lines = [f"{n}\tthe cat\ta dog\t{int(n % 3 == 0)}" for n in range(12)]
    for split in ("train", "dev"):
        table = ["index\tsentence1\tsentence2\tlabel", *lines]
        (folder / f"{split}.tsv").write_text("\n".join(table) + "\n")
    data = ["--data", tmp_path / "data", "--config", world.glue_config]
    words = ["glue", "wnli", "--encoder", world.pretrained, *data]
    outcome = call(*words, "--out", tmp_path / "run")
    assert outcome.status == 0
    assert "every example is answered 'not_entailment'" in outcome.err
    results = results_of(tmp_path / "run")
    assert results["fixed_answer"] == "not_entailment"
    assert results["metrics"] == {"accuracy": pytest.approx(8 / 12)}
    assert call("evaluate", tmp_path / "run").json["metrics"] == results["metrics"]
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert call(*words, "--train-wnli", "--out", tmp_path / "trained").status == 0
    assert (tmp_path / "trained" / "checkpoints" / "best").is_dir()
    assert "fixed_answer" not in results_of(tmp_path / "trained")


def test_runs_become_a_zip_that_says_what_it_lacks(
    world: World, tmp_path: Path, call: Call
) -> None:
    folder = tmp_path / "data" / "glue_data" / "RTE"
    folder.mkdir(parents=True)
    names = ("entailment", "not_entailment")
    lines = [f"{n}\tthe cat\ta dog\t{names[n % 2]}" for n in range(12)]
    for split in ("train", "dev"):
        table = ["index\tsentence1\tsentence2\tlabel", *lines]
        (folder / f"{split}.tsv").write_text("\n".join(table) + "\n")
    test = ["index\tsentence1\tsentence2", *(f"{n}\tthe bird\ta tree" for n in range(5))]
    (folder / "test.tsv").write_text("\n".join(test) + "\n")
    run, target = tmp_path / "run", tmp_path / "glue.zip"
    words = ["glue", "rte", "--encoder", world.pretrained, "--config", world.glue_config]
    assert call(*words, "--data", tmp_path / "data", "--seeds", "1,2", "--out", run).status == 0
    assert call("submit", run, "--out", target).status == 2
    assert not target.exists()
    outcome = call("submit", run, "--out", target, "--allow-missing", "--allow-subset")
    assert outcome.status == 0, outcome.err
    assert "the leaderboard rejects it" in outcome.err
    assert "no GLUE average on the validation files" in outcome.err
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == ["RTE.tsv"]
        rows = archive.read("RTE.tsv").decode().splitlines()
    assert rows[0] == "index\tprediction"
    assert [row.split("\t")[0] for row in rows[1:]] == list("01234")
    assert {row.split("\t")[1] for row in rows[1:]} <= set(names)
    assert call("submit", "--check", target).status == 2
    allowed = ["--allow-missing", "--allow-subset"]
    assert call("submit", "--check", target, *allowed).status == 0


# families of other packages

EXTENSION = """\
import dataclasses
from tasks.families import FAMILIES

choose = FAMILIES["choose"]
FAMILIES = {"quiz": dataclasses.replace(choose, help="fine-tune on quizzes", group="games")}
"""


def installed(site: Path, module: str, content: str) -> dict[str, str]:
    """Install a package that offers families; returns the variables of a process that sees it."""
    (site / f"{module}.py").write_text(content)
    about = site / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    entry = f"[finetune.families]\n{module} = {module}:FAMILIES\n"
    (about / "entry_points.txt").write_text(entry)
    return {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


def test_a_family_of_another_package_has_a_command_that_trains(
    world: World, files: Files, tmp_path: Path, start: Start
) -> None:
    (tmp_path / "site").mkdir()
    variables = installed(tmp_path / "site", "our_quizzes", EXTENSION)
    overview = start("--help", variables=variables).end()
    assert "games:\n  quiz        fine-tune on quizzes\n" in overview.out
    run = tmp_path / "run"
    kind = Kind(("quiz",), own("-choices.jsonl"))
    words = kind.command(world, files, run, "--max-steps", 2, "--cache-dir", tmp_path / "cache")
    trained = start(*words, variables=variables).end()
    assert trained.status == 0, trained.err
    assert "task: quiz/choices\n" in (run / "config.yaml").read_text()
    scored = start("evaluate", run, variables=variables).end()
    assert scored.json == trained.json


def test_a_package_whose_families_cannot_be_loaded_stops_no_command(
    tmp_path: Path, start: Start
) -> None:
    variables = installed(tmp_path, "broken_reviews", "import nowhere_to_be_found\n")
    outcome = start("--help", variables=variables).end()
    assert outcome.status == 0
    assert "  glue  " in outcome.out
    assert outcome.err == (
        "finetune: warning: the task families of the package broken_reviews "
        "(broken_reviews:FAMILIES) cannot be loaded: ModuleNotFoundError: No module named "
        "'nowhere_to_be_found'; repair or uninstall it\n"
    )
