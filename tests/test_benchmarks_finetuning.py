"""The benchmarks of fine-tuning a published encoder: parts of files, turns, tables, choices."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.families import FAMILIES
from tasks.glue.task import glue_task

ROOT = Path(__file__).parent.parent


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture
def parts(imported: Any) -> Any:
    return imported("part_files")


@pytest.fixture
def benchmark(imported: Any) -> Any:
    return imported("finetuning")


@pytest.fixture
def results(imported: Any) -> Any:
    return imported("minilm_results")


def write_rte(folder: Path, rows: int = 20) -> Path:
    place = folder / "glue_data" / "RTE"
    place.mkdir(parents=True)
    header = "index\tsentence1\tsentence2\tlabel"
    for name in ("train", "dev"):
        labels = ("entailment", "not_entailment")
        lines = [f'{n}\tA "{n}.\r\u0085\tB\u2028 {n}.\t{labels[n % 2]}' for n in range(rows)]
        (place / f"{name}.tsv").write_bytes(("\ufeff" + "\n".join([header, *lines])).encode())
    return folder


def test_a_sample_holds_rows_of_the_whole_in_its_order(parts: Any, tmp_path: Path) -> None:
    data = write_rte(tmp_path / "data")
    assert parts.sample_glue(data, "rte", 7, tmp_path / "sample") == 7
    whole = glue_task("rte", data).examples("train")
    some = glue_task("rte", tmp_path / "sample").examples("train")
    assert len(some) == 7
    assert [one for one in whole if one in some] == some
    assert glue_task("rte", tmp_path / "sample").examples("validation") == glue_task(
        "rte", data
    ).examples("validation")


def test_what_is_held_out_is_a_fifth_and_no_row_is_in_both(parts: Any, tmp_path: Path) -> None:
    data = write_rte(tmp_path / "data")
    train, held = parts.hold_out_glue(data, "rte", tmp_path / "held", None)
    task = glue_task("rte", data, {"train": train, "validation": held})
    kept, out = task.examples("train"), task.examples("validation")
    assert (len(kept), len(out)) == (16, 4)
    whole = glue_task("rte", data).examples("train")
    assert sorted([*kept, *out], key=lambda one: one.id) == whole


def test_a_file_without_a_header_keeps_its_first_row(parts: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("gj04\t1\t\tThey sing.\ngj04\t0\t*\tThey sings.\n")
    assert parts.glue_rows(file, "cola") == ([], file.read_text().splitlines())


def test_a_packed_file_is_read_as_the_plain_one(parts: Any, tmp_path: Path) -> None:
    plain = tmp_path / "train.tsv"
    plain.write_text("sentence\tlabel\ngood\t1\n", encoding="utf-8")
    rows = parts.glue_rows(plain, "sst2")
    assert rows == (["sentence\tlabel"], ["good\t1"])
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert parts.glue_rows(plain, "sst2") == rows


def test_questions_are_drawn_by_passage(parts: Any) -> None:
    passages = [(f"{n}.txt", {"questions": ["?"] * 3}) for n in range(10)]
    some = parts.some_questions(passages, 7, 0)
    assert len(some) == 3
    assert some == parts.some_questions(passages, 7, 0) == sorted(some)
    assert parts.some_questions(passages, None, 0) == passages


def test_every_other_seed_is_trained_in_reverse(benchmark: Any, tmp_path: Path) -> None:
    options = benchmark.parse(["--seeds", "1,2", "--contestants", "ours,hf-best", "--limit"])
    turns = benchmark.turns_of(options, tmp_path)
    order = [(turn.contestant, turn.seed) for turn in turns]
    assert order == [("ours", 1), ("hf-best", 1), ("hf-best", 2), ("ours", 2)]


def test_both_contestants_are_given_the_same_settings(
    benchmark: Any, imported: Any, tmp_path: Path
) -> None:
    contestants = imported("finetuning_contestants")
    turn = contestants.Turn("ours", "rte", "data", "model", str(tmp_path), epochs=2, seed=5)
    words = contestants.same_as_theirs(turn)
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert {"--max-epochs": "2", "--batch-size": "32", "--learning-rate": "5e-05"}.items() <= (
        flags.items()
    )
    assert "rte" in contestants.our_words(turn)
    assert flags["--schedule"] == "linear"
    assert flags["--warmup-ratio"] == flags["--weight-decay"] == "0"
    named = contestants.arguments_of(
        contestants.Turn("hf-best", "rte", "data", "model", str(tmp_path), epochs=2, seed=5), "f1"
    )
    assert (named["num_train_epochs"], named["seed"]) == (2, 5)


def test_trainer_knows_every_argument(imported: Any, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="the extra bench is not installed")
    contestants = imported("finetuning_contestants")
    for name in contestants.SETTINGS:
        turn = contestants.Turn(name, "rte", "data", "model", str(tmp_path))
        made = hf.TrainingArguments(**contestants.arguments_of(turn, "accuracy"))
        assert made.lr_scheduler_type == "linear"
        grouped = made.train_sampling_strategy == "group_by_length"
        assert grouped == name.startswith("hf-best")


@pytest.mark.parametrize("contestant", ["hf-best", "hf-dynamic"])
def test_trainer_answers_each_example_of_its_own(
    imported: Any, tmp_path: Path, contestant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it predicts is what its best weights answer, an example at a time."""
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="the extra bench is not installed")
    torch = pytest.importorskip("torch")
    contestants, made = imported("finetuning_contestants"), imported("finetuning_made")
    data = made.write_made_task(tmp_path / "data", 80)
    monkeypatch.setattr(made, "find_spec", lambda _: None)  # made, not the installed one
    encoder, _ = made.write_made_encoder(tmp_path / "encoder")
    kept: list[Any] = []
    monkeypatch.setattr(contestants.shutil, "rmtree", lambda *_, **__: None)
    predict = hf.Trainer.predict
    monkeypatch.setattr(
        hf.Trainer,
        "predict",
        lambda self, *words: kept.append(self.model) or predict(self, *words),
    )
    folder = tmp_path / contestant
    turn = contestants.Turn(contestant, "sst2", str(data), str(encoder), str(folder), epochs=1)
    found = contestants.theirs(turn)
    lines = (folder / "predictions" / "validation.jsonl").read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    task, tokenizer = glue_task("sst2", data), hf.AutoTokenizer.from_pretrained(encoder)
    kept[0].eval()
    with torch.no_grad():
        for one in task.examples("validation"):
            words = tokenizer(*one.texts, truncation=True, max_length=128, return_tensors="pt")
            expected = kept[0](**words).logits[0].softmax(-1).tolist()
            told = [rows[one.id]["probabilities"][label] for label in task.labels]
            assert told == pytest.approx(expected, abs=1e-5)
    assert len({row["probabilities"]["negative"] for row in rows.values()}) > 50  # of 64
    assert found["metrics"] == task.score(list(rows.values()))


def test_trainer_regresses(imported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels come back as float32, in the order in which they were asked."""
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="the extra bench is not installed")
    contestants, made = imported("finetuning_contestants"), imported("finetuning_made")
    monkeypatch.setattr(made, "find_spec", lambda _: None)  # made, not the installed one
    encoder, _ = made.write_made_encoder(tmp_path / "encoder")
    folder = tmp_path / "data" / "glue_data" / "STS-B"
    folder.mkdir(parents=True)
    lines = ["index\tsentence1\tsentence2\tscore"]
    lines += [f"{n}\t{'a ' * (n % 7 + 1)}cat\ta dog\t{n % 50 / 10}" for n in range(64)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    data = str(tmp_path / "data")
    turn = contestants.Turn("hf-best", "stsb", data, str(encoder), str(out), epochs=1)
    found = contestants.theirs(turn)
    told = (out / "predictions" / "validation.jsonl").read_text().splitlines()
    labels = {row["id"]: row["label"] for row in map(json.loads, told)}
    assert labels == {n: n % 50 / 10 for n in range(64)}
    assert -1 <= found["metrics"]["pearson"] <= 1

    class Other(hf.Trainer):  # type: ignore[misc, name-defined]
        def predict(self, *words: Any) -> Any:
            found = super().predict(*words)
            return found._replace(label_ids=found.label_ids[::-1])

    monkeypatch.setattr(hf, "Trainer", Other)
    with pytest.raises(SystemExit, match="in another order"):
        contestants.theirs(turn)


def figures(contestant: str, seed: int, rate: float, score: float) -> dict[str, Any]:
    return {
        "turn": {"seed": seed},
        "contestant": contestant,
        "examples": 100,
        "step_seconds": [1.0, 2.0],
        "whole_seconds": 4.0,
        "examples_per_second": rate,
        "examples_per_processor_second": 2 * rate,
        "peak_gib": 1.0 + seed,
        "metrics": {"accuracy": score},
        "epoch_scores": [score, score - 0.1],
    }


def test_the_table_has_medians_and_deviations(benchmark: Any) -> None:
    ours = [figures("ours", seed, 10.0 * seed, 0.5 + seed / 10) for seed in (1, 2, 3)]
    rows = [
        benchmark.summary("ours", ours),
        benchmark.summary("hf-best", [figures("hf-best", 1, 10.0, 0.5)]),
    ]
    first, second = benchmark.table(rows).splitlines()[2:]
    assert first == (
        "| ours | 3 | 100 | 2 | 3.0 | 20.0 | 40.0 | 4.0 | 4.00 | 70.0 ± 10.0 | 60.0 ± 10.0 |"
    )
    assert second.endswith("| 50.0 | 40.0 |")
    assert benchmark.ratios(rows, "examples_per_second") == {"hf-best": 2.0}


def test_a_turn_that_was_taken_is_not_taken_again(benchmark: Any, tmp_path: Path) -> None:
    options = benchmark.parse(["--contestants", "ours"])
    (turn,) = benchmark.turns_of(options, tmp_path)
    Path(turn.folder).mkdir(parents=True)
    kept = {"turn": vars(turn), "score": 1}
    (Path(turn.folder) / "turn.json").write_text(json.dumps(kept))
    assert benchmark.take(turn) == kept


def test_made_sentences_are_a_task(imported: Any, tmp_path: Path) -> None:
    made = imported("finetuning_made")
    task = glue_task("sst2", made.write_made_task(tmp_path, 40))
    lengths = [len(one.texts[0].split()) for one in task.examples("train")]
    assert len(lengths) == 40
    assert max(lengths) <= 52


def driver(results: Any, folder: Path, *words: str) -> Any:
    data = write_rte(folder / "data")
    given = ["--encoder", "x", "--data", str(data), "--out", str(folder / "out"), *words]
    return results.Driver(results.parse(given))


def test_a_recipe_is_chosen_by_what_was_held_out(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = driver(results, tmp_path, "--tasks", "rte", "--choose", "--extras")
    scores = {"--learning-rate=1e-4": 0.7, "--pooling=cls": 0.1, "--rate-decay=1.2": 0.05}
    seen: list[Any] = []

    def score(task: str, flags: tuple[str, ...], files: Any) -> float:
        seen.append(flags)
        assert files.validation.name == "held-out.tsv"
        return sum(scores.get(flag, 0.0) for flag in flags)

    monkeypatch.setattr(one, "score", score)
    best = ("--learning-rate=1e-4", "--pooling=cls", "--rate-decay=1.2")
    assert one.recipe("rte", "chosen") == best
    tried = len(seen)
    assert one.recipe("rte", "chosen") == best  # from choice.json
    assert len(seen) == tried == 6
    assert len({results.name_of(flags) for flags in seen}) == 6


def test_the_plainer_recipe_stays_where_nothing_is_better(
    results: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = driver(results, tmp_path, "--tasks", "rte", "--choose")
    monkeypatch.setattr(one, "score", lambda *_: 0.5)
    assert one.recipe("rte", "chosen") == ("--learning-rate=5e-5",)


def test_a_task_may_be_trained_on_a_sample(results: Any, tmp_path: Path) -> None:
    one = driver(results, tmp_path, "--limit", "rte=7")
    files = one.official("rte")
    task = glue_task("rte", tmp_path / "data", {"train": files.train})
    assert len(task.examples("train")) == 7
    assert one.official("mrpc") == results.Files()


@pytest.mark.parametrize("task", ["rte", "squad", "race"])
def test_every_command_of_the_driver_is_understood(
    results: Any, tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks.__main__ import main

    one = driver(results, tmp_path)
    candidates = [one.recipe(task, "plain"), one.recipe(task, "config")]
    for candidates_of in results.rounds(task, extras=True):
        candidates += candidates_of(candidates[-1])
    for flags in candidates:
        words = one.words(task, flags, results.Files(), tmp_path / "run", 1)
        assert words[0] in FAMILIES
        assert main([*words, "--print-config"]) == 0, capsys.readouterr().err


def test_a_table_has_a_row_a_metric(imported: Any) -> None:
    run = {
        "metrics": {"accuracy": 0.8, "f1": 0.9},
        "baselines": {"trivial": {"accuracy": 0.7, "f1": 0.75}},
        "data": {"train": {"examples": 3668}, "padding": 0.01},
        "seed": 1,
        "train_seconds": 120.0,
        "examples_per_second": 91.7,
        "peak_gib": 1.5,
    }
    lines = imported("minilm_table").table([("mrpc", "plain", [run])]).splitlines()
    assert lines[2] == ("| mrpc | plain | accuracy | 80.0 | 70.0 | 3,668 | 1 | 2.0 | 91.7 | 1.50 |")
    assert lines[3].startswith("| mrpc | plain | f1 | 90.0 | 75.0 |  |")
