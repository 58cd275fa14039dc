"""`finetune baseline`, and the baselines beside the scores of a run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.runs.folder import RunFolder
from finetune.runs.inputs import read_inputs
from finetune.runs.predictions import read_predictions
from tests.made.families import Files, write_families
from tests.made.texts import write_csv

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_families(tmp_path_factory.mktemp("families"))


def test_baselines_of_a_task_are_scored(call: Call, world: World) -> None:
    done = call("baseline", "glue", "sst2", "--data", world.data)
    scores = done.json["baselines"]
    assert list(scores) == ["trivial", "bag_of_words", "naive_bayes"]
    assert scores["bag_of_words"]["accuracy"] > 0.8 > scores["trivial"]["accuracy"]
    assert done.json["split"] == "validation"
    assert "bag of words" in done.err
    assert call("baseline", "glue", "sst2", "--data", world.data).out == done.out


@pytest.mark.parametrize("level", ["middle", "all"])
def test_questions_are_answered_by_the_sliding_window(call: Call, files: Files, level: str) -> None:
    done = call("baseline", "race", level, "--data", files.data, "--json").json
    assert list(done["baselines"]) == ["trivial", "sliding_window"]
    assert done["seconds"].keys() == done["baselines"].keys()
    assert done["examples"] == (6 if level == "middle" else 12)


def test_own_files_are_named_as_for_training(call: Call, files: Files, tmp_path: Path) -> None:
    rows = [["a cat", "x", 1], ["a dog", "y", 0], ["the cat", "x", 1]] * 4
    table = write_csv(tmp_path / "own.csv", ["review", "other", "stars"], rows)
    words = ("--train", table, "--validation", table, "--text-column", "review")
    done = call("baseline", "classify", *words, "--label-column", "stars", "--kind", "classes")
    assert done.json["baselines"]["bag_of_words"]["accuracy"] == 1
    choices = [files.own(f"{split}-choices.jsonl") for split in ("train", "validation")]
    done = call("baseline", "choose", "--train", choices[0], "--validation", choices[1])
    assert list(done.json["baselines"]) == ["trivial", "sliding_window"]
    assert "accuracy" in call("baseline", "choose", "--validation", choices[1]).err


def test_settings_of_a_run_are_read_for_its_columns(call: Call, tmp_path: Path) -> None:
    rows = [["a cat", "x"], ["a dog", "y"]] * 4
    table = write_csv(tmp_path / "own.csv", ["review", "group"], rows)
    config = tmp_path / "run.yaml"
    config.write_text(
        f"train: {table}\nvalidation: {table}\noptimizer: {{learning_rate: 1.0e-3}}\n"
        "table: {text_column: review, label_column: group}\n"
    )
    done = call("baseline", "classify", "--config", config)
    assert done.json["baselines"]["bag_of_words"]["accuracy"] == 1


def test_baselines_do_not_wait_for_torch(world: World) -> None:
    script = (
        "import sys; from tasks.__main__ import main; main(sys.argv[1:]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pytorch_lightning')))"
    )
    words = ["baseline", "glue", "sst2", "--data", world.data]
    subprocess.run([sys.executable, "-c", script, *words], check=True)


def test_predictions_are_rows_as_those_of_a_run(call: Call, world: World, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    words = ("baseline", "glue", "sst2", "--data", world.data, "--output", file)
    assert "predictions of" in call(*words, "--only", "bag of words").err
    rows, tuned = (
        read_predictions(file),
        read_predictions(RunFolder(world.tuned).predictions("validation")),
    )
    assert [(row["id"], row["label"], row.keys()) for row in rows] == [
        (row["id"], row["label"], row.keys()) for row in tuned
    ]
    assert call(*words, "--only", "trivial").status == 0
    assert {row["prediction"] for row in read_predictions(file)} in ({"positive"}, {"negative"})


def test_errors_are_one_line(
    call: Call, refuses: Refuses, world: World, files: Files, tmp_path: Path
) -> None:
    refuses("baseline: unknown family 'gleu'; did you mean 'glue'?.*", "baseline", "gleu")
    refuses("unknown GLUE task 'sst'.*", "baseline", "glue", "sst", "--data", world.data)
    data = ("--data", world.data)
    refuses(
        "--only overlap: no baseline of glue/sst2; .*bag_of_words.*",
        *("baseline", "glue", "sst2", *data, "--only", "overlap"),
    )
    refuses("expected .*RTE.*", "baseline", "glue", "rte", *data)
    one = write_csv(tmp_path / "one.csv", ["text", "label"], [["a cat", "x"], ["a dog", "x"]])
    refuses(
        f"{one}: expected at least two different labels.*",
        *("baseline", "classify", "--train", one, "--validation", one),
    )
    refuses("own tables need a file to train on.*", "baseline", "classify")
    refuses("choose/own: no examples to score.*", "baseline", "choose")
    assert "baseline FAMILY" in call("baseline").out


def test_texts_without_words_get_the_trivial_answer_and_a_reason(
    call: Call, tmp_path: Path
) -> None:
    rows = [["?!", "x"], ["!!", "y"], ["..", "x"]]
    table = write_csv(tmp_path / "own.csv", ["text", "label"], rows)
    done = call("baseline", "classify", "--train", table, "--validation", table)
    assert list(done.json["baselines"]) == ["trivial"]
    assert "no score of the baseline bag of words: the training texts contain no word" in done.err


def test_help_lists_files_and_columns_and_nothing_of_training(call: Call) -> None:
    text = call("baseline", "classify", "--help").out
    assert "--text-column" in text
    assert "--train" in text
    assert "--learning-rate" not in text
    assert "--encoder" not in text


def test_run_shows_its_baselines_and_warns_below_them(
    call: Call, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    few = ("--seeds", "1,2", "--learning-rate", "1e-9", "--max-steps", "1")
    done = call(*world.glue(out, "--json", *few))
    results = json.loads((out / "results.json").read_text())
    first, second = (run["baselines"] for run in results["runs"])
    assert first == second
    assert list(first) == ["trivial", "bag_of_words", "naive_bayes"]
    files = sorted(file.name for file in (out / "baselines").iterdir())
    assert files == ["bag_of_words.validation.jsonl", "naive_bayes.validation.jsonl"]
    assert not list(out.glob("seed-*/baselines"))
    assert "trivial baseline" in done.err
    assert "warning: below the baseline" in done.err


def test_run_is_compared_with_a_baseline_over_the_same_examples(
    call: Call, refuses: Refuses, world: World, tmp_path: Path
) -> None:
    several, single = tmp_path / "several", tmp_path / "single"
    few = ("--learning-rate", "1e-9", "--max-steps", "1")
    assert call(*world.glue(several, *few, "--seeds", "1,2,3")).status == 0
    assert call(*world.glue(single, *few)).status == 0
    found = call("compare", several, "--baseline", "bag of words", "--json").json
    (difference,) = (one for one in found["differences"] if one["metric"] == "accuracy")
    bar = RunFolder(several).read_results()["runs"][0]["baselines"]["bag_of_words"]["accuracy"]
    assert difference["b"]["mean"] == pytest.approx(bar)
    assert [one["seed"] for one in difference["mcnemar"]] == ["1", "2", "3"]
    assert (found["seeds_a"], found["seeds_b"]) == ([1, 2, 3], [])
    assert difference["bootstrap"]["interval"][1] < 0
    for place in (single, several / "seed-2"):  # whose baselines lie in the folder above
        text = call("compare", place, "--baseline", "bag_of_words").out
        assert "bag of words is better than" in text
        assert "B: bag of words (a baseline)" in text
        assert "1 seed does not say more: at least 3 are needed" in " ".join(text.split())
    assert "has no answers" in call("compare", single, "--baseline", "trivial").out
    refuses(".*no baseline 'bag'; .*bag_of_words.*", "compare", single, "--baseline", "bag")
    refuses("compare: name a second run, or a baseline.*", "compare", single)
    refuses(
        ".*expected runs with scores of baselines, got none; compare it with another run",
        *("compare", world.pretrained, "--baseline", "n_gram"),
    )
    refuses(
        "compare: name a second run, or a baseline.*",
        *("compare", single, several, "--baseline", "trivial"),
    )


def test_seeds_draw_their_own_training_examples_and_baselines(
    call: Call, refuses: Refuses, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ("--seeds", "1,2", "--train-examples", "8", "--max-steps", "1")
    done = call(*world.glue(out, *words, "--json"))
    runs = [RunFolder(out).seed(seed).read_results() for seed in (1, 2)]
    assert [run["data"]["train"]["examples"] for run in runs] == [8, 8]
    assert runs[0]["data"]["validation"]["examples"] > 8
    assert "drawn by seed 2" in done.err
    assert all(len(list(out.glob(f"seed-{seed}/baselines/*"))) == 2 for seed in (1, 2))
    digests = [read_inputs(RunFolder(out).seed(seed).path) for seed in (1, 2)]
    assert digests[0]["train examples"] != digests[1]["train examples"]  # type: ignore[index]
    whole = ("--split", "train", "--file", world.data / "glue_data" / "SST-2" / "train.tsv")
    assert call("evaluate", RunFolder(out).seed(1).path, *whole, "--json").json["examples"] > 8
    too_many = ("--train-examples", "9999")
    refuses(".*expected 9,999 examples to train on.*", *world.glue(tmp_path / "more", *too_many))


def test_list_of_runs_has_the_best_elementary_baseline(
    call: Call, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "one"
    assert call(*world.glue(out, "--max-steps", "1")).status == 0
    scores = RunFolder(out).read_results()["baselines"]
    best = max(("bag_of_words", "naive_bayes"), key=lambda name: scores[name]["accuracy"])
    (row,) = call("runs", out.parent, "--json").json["runs"]
    assert row["elementary"] == best
    assert row["elementary_score"] == scores[best]["accuracy"]
    header, _, line = call("runs", out.parent).out.splitlines()
    assert "elementary" in header
    assert f"{100 * scores[best]['accuracy']:.1f}" in line


def test_all_predictions_are_written_into_a_folder(
    call: Call, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    out = tmp_path / "answers"
    words = ("baseline", "glue", "sst2", "--data", world.data)
    scores = call(*words, "--out", out).json["baselines"]
    assert sorted(file.name for file in out.iterdir()) == [
        f"{name}.validation.jsonl" for name in sorted(scores)
    ]
    for name, metrics in scores.items():
        rows = read_predictions(out / f"{name}.validation.jsonl")
        right = [row["prediction"] == row["label"] for row in rows]
        assert sum(right) / len(right) == pytest.approx(metrics["accuracy"])
    (tmp_path / "file").write_text("")
    refuses("--out .*a file.*", *words, "--out", tmp_path / "file")


@pytest.mark.parametrize("flag", ["--output", "--out"])
def test_predictions_are_not_written_over_what_is_read(
    refuses: Refuses, files: Files, tmp_path: Path, flag: str
) -> None:
    read = tmp_path / "sliding_window.validation.jsonl"
    content = files.own("validation-choices.jsonl").read_text()
    read.write_text(content)
    target = read if flag == "--output" else tmp_path
    words = ("baseline", "choose", "--validation", read, flag, target)
    refuses(f"{flag}: .* is a file that is read; name another", *words)
    assert read.read_text() == content


def test_causal_pretraining_has_an_n_gram_model_beside_it(
    call: Call, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "causal"
    words = world.pretrain(out, "--tokenizer", world.tokenizer, "--causal", "--max-steps", "1")
    done = call(*words, "--json")
    scores = done.json["baselines"]["n_gram"]
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert 0 < scores["loss"] < done.json["data"]["unigram_entropy"] < done.json["metrics"]["loss"]
    assert "warning: below the baseline n gram in loss" in done.err
    again = call(*words, "--overwrite", "--json", "--no-baselines").json
    assert "baselines" not in again
    assert again["metrics"] == done.json["metrics"]
    masked = RunFolder(world.pretrained).read_results()
    assert "baselines" not in masked  # which sees the tokens on both sides


def test_run_without_baselines_has_the_trivial_one_alone(
    call: Call, world: World, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    done = call(*world.glue(out, "--json", "--no-baselines", "--max-steps", "1"))
    assert list(done.json["baselines"]) == ["trivial"]
    assert not (out / "baselines").exists()
    assert "trivial baseline" in done.err
    assert "bag of words" not in done.err


def test_run_whose_texts_have_no_words_ends_all_the_same(
    call: Call, world: World, tmp_path: Path
) -> None:
    rows = [["?!", "x"], ["!!", "y"], ["..", "x"]] * 3
    table = write_csv(tmp_path / "own.csv", ["text", "label"], rows)
    words = ("--train", table, "--validation", table, "--out", tmp_path / "run", "--max-steps", 1)
    start = ("--encoder", world.pretrained, "--config", world.glue_config)
    with pytest.warns(UserWarning, match=r"mostly \[UNK\]"):
        done = call("classify", *start, *words, "--json")
    assert done.status == 0
    assert list(done.json["baselines"]) == ["trivial"]
    assert "warning: no score of the baseline bag of words" in done.err
