"""`finetune submit`: small test files, runs that are their result files alone, no model."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import ConfigError, DataError
from finetune.runs.predictions import read_predictions, write_predictions
from finetune.runs.results import over_seeds
from finetune.settings.values import load
from tasks.__main__ import main
from tasks.glue.task import GLUE, GlueRow, glue_task
from tasks.leaderboard import FORMS, average_metrics, zip_problems
from tasks.submit import average_line, read_entries, submit

TRAINED = [row for row in GLUE.values() if row.name != "ax"]
ROWS = 3
"""Of each test file."""


@pytest.fixture
def glue_data(data: Path) -> Path:
    """The official files of the other tests, with three rows in each test file."""
    for row in GLUE.values():
        columns = ("sentence",) if row.name == "cola" else row.texts
        for split in glue_task(row.name).test_splits:
            lines = ["\t".join(["index" if row.index != "id" else "id", *columns])]
            lines += ["\t".join([str(n), *columns]) for n in range(ROWS)]
            path = data / "glue_data" / row.folder / row.splits[split].file
            path.write_text("\n".join(lines) + "\n")
    return data


def scores_of(row: GlueRow, value: float) -> dict[str, float]:
    return dict.fromkeys(average_metrics(row), value)


def results_of(task: str, seed: int, value: float, **more: Any) -> dict[str, Any]:
    row = GLUE[task]
    metrics = scores_of(row, value) if task != "ax" else {}
    split = "validation_matched" if task == "mnli" else "validation"
    return {"task": f"glue/{task}", "split": split, "metrics": metrics, "seed": seed, **more}


def make_run(folder: Path, task: str, data: Path, results: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    settings = {"encoder_from": "none", "task": f"glue/{task}", "data": str(data)}
    (folder / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in settings.items()))
    (folder / "results.json").write_text(json.dumps(results))
    return folder


class Library:
    """Stands for the model: notes what it is asked, answers by the row's number."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.asked: list[tuple[str, str | None, str]] = []

    def __call__(
        self, folder: Path, task: str | None, split: str, data: str | None
    ) -> list[dict[str, Any]]:
        self.asked.append((folder.name, task, split))
        own = str(load(folder / "config.yaml")["task"])
        read = glue_task(task or own, Path(data) if data else self.data)
        labels: tuple[Any, ...] = read.labels or (0.0, 2.5, 5.0)
        answers = [
            {"id": example.id, "prediction": labels[number % len(labels)]}
            for number, example in enumerate(read.examples(split))
        ]
        write_predictions(answers, folder / "predictions" / f"{split}.jsonl")
        return answers


@pytest.fixture
def library(glue_data: Path) -> Library:
    return Library(glue_data)


@pytest.fixture
def runs(tmp_path: Path, glue_data: Path) -> dict[str, Path]:
    """A run of each of the nine tasks."""
    return {
        row.name: make_run(
            tmp_path / "runs" / row.name, row.name, glue_data, results_of(row.name, 1, 0.5)
        )
        for row in TRAINED
    }


def words(*parts: object) -> list[str]:
    return [str(part) for part in parts]


def lines_of(captured: Any) -> list[str]:
    return str(captured.readouterr().err).splitlines()


def members(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


class TestBuilding:
    def test_nine_runs_give_the_eleven_files(
        self, runs: dict[str, Path], library: Library, tmp_path: Path, capsys: Any
    ) -> None:
        out = tmp_path / "glue.zip"
        assert submit(words(*runs.values(), "--out", out, "--allow-subset"), library) == 0
        files = members(out)
        assert list(files) == list(FORMS)
        assert zip_problems(out, allow_subset=True) == []
        assert files["CoLA.tsv"] == "index\tprediction\n0\t0\n1\t1\n2\t0\n"
        assert files["WNLI.tsv"] == "index\tprediction\n0\t0\n1\t1\n2\t0\n"
        assert files["STS-B.tsv"] == "index\tprediction\n0\t0.000\n1\t2.500\n2\t5.000\n"
        rte = "index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tentailment\n"
        assert files["RTE.tsv"] == files["QNLI.tsv"] == rte
        three = "index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n"
        assert files["MNLI-m.tsv"] == files["MNLI-mm.tsv"] == files["AX.tsv"] == three
        captured = capsys.readouterr()
        assert captured.out == f"{out}\n"
        assert "GLUE average on the validation files: 50.00 %" in captured.err
        assert "AX.tsv: 3 answers of 1,104: a subset; the leaderboard rejects it" in (captured.err)

    def test_each_file_is_asked_of_its_run_and_ax_of_the_mnli_run(
        self, runs: dict[str, Path], library: Library, tmp_path: Path
    ) -> None:
        submit(words(*runs.values(), "--out", tmp_path / "g.zip", "--allow-subset"), library)
        assert ("mnli", "glue/ax", "ax") in library.asked
        assert ("mnli", None, "test_matched") in library.asked
        assert ("mnli", None, "test_mismatched") in library.asked
        assert ("rte", None, "test") in library.asked
        assert len(library.asked) == 11
        submit(words(*runs.values(), "--out", tmp_path / "h.zip", "--allow-subset"), library)
        assert (tmp_path / "g.zip").read_bytes() == (tmp_path / "h.zip").read_bytes()

    def test_answers_that_do_not_fit_the_test_file_are_an_error(
        self, runs: dict[str, Path], library: Library, tmp_path: Path
    ) -> None:
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")
        with pytest.raises(
            DataError,
            match=r"rte: expected answers to the 3 examples of .*RTE/test.tsv, got 1 with other",
        ):
            submit(words(runs["rte"], *options), lambda *_: library(*_)[:1])
        assert not (tmp_path / "g.zip").exists()

    def test_run_of_ax_goes_before_that_of_mnli(
        self, runs: dict[str, Path], library: Library, tmp_path: Path
    ) -> None:
        own = make_run(tmp_path / "runs" / "ax", "ax", library.data, results_of("ax", 1, 0))
        submit(words(*runs.values(), own, "--out", tmp_path / "g.zip", "--allow-subset"), library)
        assert ("ax", None, "ax") in library.asked
        assert ("mnli", "glue/ax", "ax") not in library.asked

    def test_data_folder_that_is_named_goes_before_that_of_the_run(
        self, library: Library, tmp_path: Path
    ) -> None:
        run = make_run(tmp_path / "rte", "rte", tmp_path / "gone", results_of("rte", 1, 0.5))
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")
        assert submit(words(run, *options, "--data", library.data), library) == 0
        assert list(members(tmp_path / "g.zip")) == ["RTE.tsv"]

    def test_test_file_that_the_run_names_is_the_one_that_is_answered(
        self, library: Library, tmp_path: Path
    ) -> None:
        run = make_run(tmp_path / "rte", "rte", library.data, results_of("rte", 1, 0.5))
        mine = tmp_path / "mine.tsv"
        mine.write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
        with (run / "config.yaml").open("a") as file:
            file.write(f"test: {mine}\n")
        answers = [{"id": 0, "prediction": "entailment"}]
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")
        assert submit(words(run, *options), lambda *_: answers) == 0
        assert members(tmp_path / "g.zip") == {"RTE.tsv": "index\tprediction\n0\tentailment\n"}

    def test_majority_class_of_wnli_is_said(
        self, library: Library, tmp_path: Path, capsys: Any
    ) -> None:
        results = results_of("wnli", 1, 0.5, fixed_answer="not_entailment")
        run = make_run(tmp_path / "wnli", "wnli", library.data, results)
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")
        submit(words(run, *options), library)
        assert (
            f"glue/wnli: {run}, not trained: every example is answered 'not_entailment', the "
            "majority class of the training labels" in lines_of(capsys)
        )

    def test_answers_on_file_are_taken_only_if_they_are_to_this_very_test_file(
        self, glue_data: Path, tmp_path: Path, capsys: Any
    ) -> None:
        folder = glue_data / "glue_data" / "WNLI"
        header = "index\tsentence1\tsentence2\tlabel\n"
        (folder / "train.tsv").write_text(header + "0\ta\tb\t1\n1\ta\tc\t0\n2\ta\td\t1\n")
        run = make_run(tmp_path / "wnli", "wnli", glue_data, results_of("wnli", 1, 0.5))
        path = run / "predictions" / "test.jsonl"
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")

        def reason() -> list[str]:
            assert main(words("submit", run, *options)) == 0
            assert members(tmp_path / "g.zip")["WNLI.tsv"].count("\t1\n") == 3
            return [line for line in lines_of(capsys) if line.startswith(str(path))]

        assert reason() == [f"{path}: no answers on file yet; answering by {run}"]
        assert reason() == []
        test = folder / "test.tsv"
        with gzip.open(f"{test}.gz", "wt") as packed:
            packed.write(test.read_text())
        test.rename(tmp_path / "test.tsv")
        assert reason() == []  # the same rows, packed
        (tmp_path / "test.tsv").rename(test)
        test.write_text(test.read_text().replace("1\tsentence1", "1\tanother"))
        assert reason() == [f"{path}: its answers are to other data; answering by {run}"]
        write_predictions([{"id": n, "prediction": "not_entailment"} for n in range(ROWS)], path)
        unknown = (
            "its answers may be of another checkpoint or to other data: nothing beside it says"
        )
        assert reason() == [f"{path}: {unknown}; answering by {run}"]
        answers = read_predictions(path)
        assert {answer["prediction"] for answer in answers} == {"entailment"}
        (folder / "train.tsv").write_text(header + "0\ta\tb\t1\n1\ta\tc\t0\n2\ta\td\t0\n")
        assert main(words("submit", run, *options)) == 0
        told = [line for line in lines_of(capsys) if line.startswith(str(path))]
        assert told == [f"{path}: its answers are of another checkpoint; answering by {run}"]


class TestSeeds:
    @pytest.fixture
    def several(self, library: Library, tmp_path: Path) -> Path:
        folder = tmp_path / "rte"
        each = [results_of("rte", seed, value) for seed, value in ((3, 0.5), (7, 0.75), (9, 0.75))]
        make_run(folder, "rte", library.data, over_seeds(each))
        for one in each:
            make_run(folder / f"seed-{one['seed']}", "rte", library.data, one)
        return folder

    def test_best_on_validation_is_taken_and_named(
        self, several: Path, library: Library, tmp_path: Path, capsys: Any
    ) -> None:
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing")
        assert submit(words(several, *options), library) == 0
        assert library.asked == [("seed-7", None, "test")]
        assert (
            f"glue/rte: {several}/seed-7, seed 7 of 3, 7, 9 (best accuracy on validation, 75.00 %)"
        ) in lines_of(capsys)

    def test_all_seeds_answer_together(
        self, several: Path, library: Library, tmp_path: Path, capsys: Any
    ) -> None:
        for seed in ("seed-3", "seed-7", "seed-9"):
            with pytest.raises(ConfigError, match=rf"expected 3 seeds that have ended, .* {seed}"):
                read_entries([several], ensemble=True)
            best = several / seed / "checkpoints" / "best"
            best.mkdir(parents=True)
            (best / "config.json").touch()
        options = ("--out", tmp_path / "g.zip", "--allow-subset", "--allow-missing", "--ensemble")
        assert submit(words(several, *options), library) == 0
        assert library.asked == [("rte", None, "test")]
        line = f"glue/rte: {several}, seeds 3, 7, 9 together (scores: the mean of the seeds)"
        assert line in lines_of(capsys)
        metrics = read_entries([several], ensemble=True)["rte"].run.metrics
        assert metrics == {"accuracy": pytest.approx(2 / 3)}

    def test_its_scores_are_those_of_the_average(self, several: Path) -> None:
        assert read_entries([several])["rte"].run.metrics == {"accuracy": 0.75}

    def test_one_seeds_folder_may_be_named(self, several: Path) -> None:
        assert read_entries([several / "seed-9"])["rte"].run.folder == several / "seed-9"


class TestRefusal:
    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        """A zip of an earlier time, which a refused one must not touch."""
        path = tmp_path / "glue.zip"
        path.write_bytes(b"old")
        return path

    def test_missing_tasks_are_named_before_anything_is_predicted(
        self, runs: dict[str, Path], library: Library, out: Path, capsys: Any
    ) -> None:
        given = [run for task, run in runs.items() if task not in ("mnli", "rte")]
        assert submit(words(*given, "--out", out, "--allow-subset"), library) == 2
        lines = [line for line in lines_of(capsys) if line.startswith("finetune: ")]
        assert lines == [
            "finetune: MNLI-m.tsv: expected the answers of mnli, got no such file",
            "finetune: MNLI-mm.tsv: expected the answers of mnli, got no such file",
            "finetune: RTE.tsv: expected the answers of rte, got no such file",
            "finetune: AX.tsv: expected the answers of ax, got no such file",
            "finetune: submit: 4 of the 11 files are missing; --allow-missing goes without",
        ]
        assert library.asked == []
        assert out.read_bytes() == b"old"

    def test_missing_tasks_that_are_allowed_are_named_with_a_warning(
        self, runs: dict[str, Path], library: Library, out: Path, capsys: Any
    ) -> None:
        given = [run for task, run in runs.items() if task != "rte"]
        options = ("--out", out, "--allow-subset", "--allow-missing")
        assert submit(words(*given, *options), library) == 0
        lines = lines_of(capsys)
        assert "missing: RTE.tsv: expected the answers of rte, got no such file" in lines
        assert f"{out}: 1 of the 11 files is missing; the leaderboard rejects it" in lines
        assert "no GLUE average on the validation files: rte missing" in lines
        assert "RTE.tsv" not in members(out)

    def test_test_file_that_is_not_there_is_a_missing_task(
        self, runs: dict[str, Path], library: Library, out: Path, capsys: Any
    ) -> None:
        gone = library.data / "glue_data" / "MNLI" / "test_matched.tsv"
        gone.unlink()
        assert submit(words(*runs.values(), "--out", out, "--allow-subset"), library) == 2
        assert any(
            line.startswith("finetune: MNLI-m.tsv: expected the test_matched file of glue/mnli at")
            for line in lines_of(capsys)
        )
        options = ("--out", out, "--allow-subset", "--allow-missing")
        assert submit(words(*runs.values(), *options), library) == 0
        assert members(out).keys() == FORMS.keys() - {"MNLI-m.tsv"}

    def test_small_test_files_are_refused_unless_they_are_allowed(
        self, runs: dict[str, Path], library: Library, out: Path, capsys: Any
    ) -> None:
        assert submit(words(*runs.values(), "--out", out), library) == 2
        lines = [line for line in lines_of(capsys) if line.startswith("finetune: ")]
        assert len(lines) == 12
        assert (
            "finetune: RTE.tsv:4: expected 3,000 rows, got 3; --allow-subset lets fewer through"
        ) in lines
        assert lines[-1] == f"finetune: submit: {out} was not written"
        assert out.read_bytes() == b"old"

    @pytest.mark.parametrize(
        ("task", "prediction", "problem"),
        [
            ("rte", "perhaps", "test.jsonl: glue/rte: expected one of entailment, not_entailment"),
            ("stsb", 7.5, "STS-B.tsv:2: expected a number from 0 to 5, got '7.500'"),
            ("stsb", "high", "test.jsonl: glue/stsb: expected a number, got 'high'"),
        ],
    )
    def test_illegal_answers_are_refused(
        self,
        task: str,
        prediction: Any,
        problem: str,
        runs: dict[str, Path],
        library: Library,
        out: Path,
        capsys: Any,
    ) -> None:
        def answer(folder: Path, *rest: Any) -> list[dict[str, Any]]:
            answers = library(folder, *rest)
            if folder.name == task:
                answers = [{"id": n, "prediction": prediction} for n in range(ROWS)]
            return answers

        options = ("--out", out, "--allow-subset", "--allow-missing")
        assert submit(words(*runs.values(), *options), answer) == 2
        assert any(problem in line for line in lines_of(capsys))
        assert out.read_bytes() == b"old"

    def test_indices_with_a_gap_are_refused(
        self, runs: dict[str, Path], library: Library, out: Path, capsys: Any
    ) -> None:
        path = library.data / "glue_data" / "RTE" / "test.tsv"
        path.write_text("index\tsentence1\tsentence2\n0\ta\tb\n2\ta\tb\n")
        assert submit(words(*runs.values(), "--out", out, "--allow-subset"), library) == 2
        assert "finetune: RTE.tsv:3: expected the index 1, got '2'" in lines_of(capsys)

    def test_two_runs_of_one_task_are_an_error_that_names_both(
        self, runs: dict[str, Path], library: Library, out: Path, tmp_path: Path
    ) -> None:
        # As the command line takes it, in any usual spelling.
        other = make_run(tmp_path / "b", "STS-B", library.data, results_of("stsb", 1, 0.5))
        with pytest.raises(
            ConfigError,
            match=f"expected one run of glue/stsb, got {runs['stsb']} and {other}; leave one out",
        ):
            submit(words(runs["stsb"], other, "--out", out), library)

    def test_run_of_another_family_is_an_error(
        self, library: Library, out: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "squad"
        folder.mkdir()
        (folder / "config.yaml").write_text("task: squad/1.1\n")
        with pytest.raises(ConfigError, match="expected a run of a GLUE task, got squad/1.1"):
            submit(words(folder, "--out", out), library)

    def test_what_is_no_run_or_has_not_ended_is_an_error(
        self, runs: dict[str, Path], library: Library, out: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="none: expected a fine-tuning run with config.yaml"):
            submit(words(tmp_path / "none", "--out", out), library)
        (runs["rte"] / "results.json").unlink()
        with pytest.raises(DataError, match="results.json: no such file; the run has not ended"):
            submit(words(runs["rte"], "--out", out), library)

    @pytest.mark.parametrize(
        "results",
        [
            {},
            [],
            {"metrics": [1]},
            {"metrics": {"accuracy": {"mean": 0.5}}},
            {"seeds": [1]},
            {"seeds": [1], "metrics": {}},
        ],
    )
    def test_results_of_another_form_are_an_error(
        self, results: Any, runs: dict[str, Path], library: Library, out: Path
    ) -> None:
        (runs["rte"] / "results.json").write_text(json.dumps(results))
        with pytest.raises(DataError, match="results.json: expected (the )?results"):
            submit(words(runs["rte"], "--out", out), library)

    def test_words_that_do_not_fit_are_an_error(
        self, runs: dict[str, Path], library: Library, out: Path, tmp_path: Path
    ) -> None:
        for given in ([], [runs["rte"]], ["--out", out]):
            with pytest.raises(ConfigError, match="expected RUN... and --out ZIP, or --check ZIP"):
                submit(words(*given), library)
        with pytest.raises(
            ConfigError, match="--check ZIP reads a zip and writes nothing; remove RUN"
        ):
            submit(words("--check", out, runs["rte"]), library)
        with pytest.raises(ConfigError, match="is a folder; name a file such as .*glue.zip"):
            submit(words(runs["rte"], "--out", tmp_path), library)

    def test_nothing_that_could_be_written_is_an_error(self, library: Library, out: Path) -> None:
        run = make_run(out.parent / "r", "rte", out.parent / "gone", results_of("rte", 1, 0.5))
        with pytest.raises(ConfigError, match="no file of the 11 is left to write"):
            submit(words(run, "--out", out, "--allow-missing"), library)


class TestChecking:
    def test_good_zip_is_said_to_be_good(
        self, runs: dict[str, Path], library: Library, tmp_path: Path, capsys: Any
    ) -> None:
        out = tmp_path / "glue.zip"
        submit(words(*runs.values(), "--out", out, "--allow-subset"), library)
        capsys.readouterr()
        assert submit(words("--check", out, "--allow-subset"), library) == 0
        assert lines_of(capsys) == [
            f"{out}: no problem found",
            "warning: official files or rows are missing; the leaderboard rejects it",
        ]

    def test_every_problem_is_a_line_and_the_status_two(self, tmp_path: Path, capsys: Any) -> None:
        path = tmp_path / "theirs.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("CoLA.tsv", "id\tlabel\n0\tyes\n")
            archive.writestr("glue/RTE.tsv", "index\tprediction\n0\tentailment\n")
        status = main(["submit", "--check", str(path), "--allow-subset", "--allow-missing"])
        assert status == 2
        header = r"'id\tlabel'"
        assert lines_of(capsys) == [
            f"finetune: {path}: CoLA.tsv:1: expected the header index<TAB>prediction, got {header}",
            f"finetune: {path}: CoLA.tsv:2: expected one of 0, 1, got 'yes'",
            f"finetune: {path}: glue/RTE.tsv: expected the file at the top of the zip, got it in "
            "a folder",
        ]

    def test_what_is_no_zip_is_one_line(self, tmp_path: Path, capsys: Any) -> None:
        path = tmp_path / "theirs.zip"
        path.write_text("no zip")
        assert main(["submit", "--check", str(path)]) == 2
        (line,) = lines_of(capsys)
        assert line.startswith(f"finetune: {path}: expected a zip, got none that can be read")


def test_average_is_said_or_what_it_lacks() -> None:
    scores = {row.name: scores_of(row, 0.25) for row in TRAINED}
    assert average_line(scores) == "GLUE average on the validation files: 25.00 %"
    del scores["qqp"], scores["mnli"]["validation_mismatched/accuracy"]
    assert average_line(scores) == (
        "no GLUE average on the validation files: qqp, mnli validation_mismatched/accuracy missing"
    )
