"""The command line from a raw text to a score, and what each command prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from finetune.checkpoints.folder import load_checkpoint
from finetune.runs.families import families
from finetune.runs.predictions import read_predictions
from tasks.__main__ import COMMANDS

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses, Start
    from tests.made.world import World

ROOT = Path(__file__).parent.parent.parent
OWN = [
    "tokenizer",
    "pretrain",
    "adapt",
    "import-hf",
    "evaluate",
    "predict",
    "export",
    "generate",
    "runs",
    "compare",
    "inspect",
    "report",
    "dashboard",
    "describe",
    "cache",
    "bench",
    "completion",
    "baseline",
    "corpus",
    "sweep",
]


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def files_of(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        ["squad", "2.0", "--seeds", "1,2,30"],
        ["squad", "2.0", "--seeds", "1", "2", "30"],
        ["squad", "--seeds", "1,", "2,", "30", "2.0"],
    ],
    ids=" ".join,
)
def test_seeds_may_have_commas_or_blanks_between_them(words: list[str], call: Call) -> None:
    run = ["--encoder", "none", "--out", "run", "--print-config", "--json"]
    assert json.loads(call(*words, *run).out)["seeds"] == [1, 2, 30]


# The whole road


def test_from_raw_text_to_a_score(world: World, tmp_path: Path, call: Call) -> None:
    pretrained, tuned = tmp_path / "pretrained", tmp_path / "tuned"
    first = call(*world.pretrain(pretrained))  # learns its own vocabulary
    assert first.status == 0
    assert first.json["task"] == "pretrain"
    second = call(*world.glue(tuned, encoder=pretrained))
    assert second.status == 0
    again = call("evaluate", tuned)
    assert again.json == second.json
    assert second.json["metrics"] == read(tuned / "results.json")["metrics"]
    assert (pretrained / "tokenizer" / "tokenizer.json").is_file()


CHECKPOINT = {
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_a_run_folder_holds_what_it_should(world: World) -> None:
    parts = {"config.yaml", "inputs.json", "log.txt", "metrics.jsonl", "results.json"}
    parts |= {f"checkpoints/{which}/{name}" for which in ("best", "last") for name in CHECKPOINT}
    parts |= {f"checkpoints/{which}/checksums.json" for which in ("best", "last")}
    parts |= {"checkpoints/last/trainer.pt"}
    assert files_of(world.pretrained) == parts
    assert files_of(world.tuned) == parts | {
        *(f"predictions/validation.{end}" for end in ("json", "jsonl")),
        *(f"baselines/{name}.validation.jsonl" for name in ("bag_of_words", "naive_bayes")),
        "texts/validation.jsonl",
    }


def test_the_docs_name_every_file_of_a_run(world: World) -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    table = page.partition("## What a run leaves")[2].partition("\n\nMetrics")[0]
    names = {name.replace("/validation.", "/SPLIT.") for name in files_of(world.tuned)}
    names = {re.sub("^baselines/.*", "baselines/NAME.SPLIT.jsonl", name) for name in names}
    parts = {name for name in names if not name.startswith("checkpoints/")}
    for name in {*parts, "checkpoints/best", "checkpoints/last", "checksums.json"}:
        assert f"`{name}`" in table, name


def test_results_say_what_came_out_of_what(world: World) -> None:
    results = read(world.tuned / "results.json")
    assert results["task"] == "glue/sst2"
    assert results["split"] == "validation"
    assert results["examples"] == 30
    assert results["seed"] == 1
    assert results["encoder"] == str(world.pretrained)
    assert results["data"]["train"]["examples"] == 90
    assert results["train_seconds"] > 0
    assert results["examples_per_second"] > 0
    assert results["versions"]["torch"]
    assert results["machine"]["cores"] > 0
    assert datetime.fromisoformat(results["finished"]).utcoffset() is not None
    assert results["command"].startswith("finetune glue sst2 --config ")
    assert results["working_folder"] == os.getcwd()
    assert 0 <= results["metrics"]["accuracy"] <= 1


def test_metrics_are_those_of_the_predictions(world: World) -> None:
    rows = list(read_predictions(world.tuned / "predictions" / "validation.jsonl"))
    assert [row["id"] for row in rows] == list(range(30))
    right = sum(row["prediction"] == row["label"] for row in rows)
    assert read(world.tuned / "results.json")["metrics"]["accuracy"] == pytest.approx(right / 30)


def test_the_config_of_a_run_makes_the_same_run_again(
    world: World, tmp_path: Path, call: Call
) -> None:
    config = ["--config", world.tuned / "config.yaml"]
    outcome = call("glue", "sst2", *config, "--out", tmp_path / "run")
    assert outcome.json["metrics"] == read(world.tuned / "results.json")["metrics"]


# What is printed where


def test_results_go_to_stdout_and_the_table_to_stderr(
    world: World, tmp_path: Path, call: Call
) -> None:
    outcome = call(*world.glue(tmp_path / "run", "--max-steps", 2))
    assert outcome.json.keys() == {"task", "split", "metrics"}
    table = outcome.err.splitlines()
    head = "^glue/sst2 \\(validation\\) +seed 1 +trivial baseline +bag of words +naive bayes$"
    assert re.search(head, outcome.err, re.M)
    assert re.search("^accuracy \\(%\\)( +\\d+\\.\\d\\d){4}$", outcome.err, re.M)
    assert table[-1] == f"run folder: {tmp_path}/run"


def test_it_is_quiet_where_stderr_is_no_terminal(
    world: World, tmp_path: Path, start: Start
) -> None:
    """Facts alone: what the corpus holds, what is trained, what came out."""
    outcome = start(*world.pretrain(tmp_path / "run", "--max-steps", 2)).end()
    assert outcome.status == 0, outcome.err
    assert outcome.json["task"] == "pretrain"
    assert not re.search("[\x1b\r]|Warning", outcome.err)
    assert len(outcome.err.splitlines()) < 20


# Several seeds, and runs that learnt nothing


def test_seeds_are_runs_of_their_own_and_summed_up(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    outcome = call(*world.glue(run, "--seeds", "1,2"))
    results = read(run / "results.json")
    single = [read(run / f"seed-{seed}" / "results.json") for seed in (1, 2)]
    assert results["runs"] == single
    assert results["seeds"] == [1, 2]
    assert single[0]["metrics"] == read(world.tuned / "results.json")["metrics"]
    values = [one["metrics"]["accuracy"] for one in single]
    entry = results["metrics"]["accuracy"]
    assert entry["values"] == values
    assert entry["mean"] == pytest.approx(sum(values) / 2)
    assert entry["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert "mean" in outcome.err
    assert "seed 2" in outcome.err
    moved = tmp_path / "moved"
    shutil.move(run, moved)
    assert call("evaluate", moved).json["metrics"] == results["metrics"]
    best = 1 if values[0] >= values[1] else 2
    (tmp_path / "texts.txt").write_text("the cat sees a dog\n")
    answered = call("predict", moved, "--input", tmp_path / "texts.txt")
    alone = call("predict", moved / f"seed-{best}", "--input", tmp_path / "texts.txt")
    assert answered.out == alone.out != ""
    assert f"{moved}: several seeds; the best by accuracy is seed {best}\n" in answered.err


def test_a_run_with_one_answer_for_all_is_flagged_and_counted(
    world: World, tmp_path: Path, call: Call
) -> None:
    lines = (world.data / "glue_data" / "SST-2" / "train.tsv").read_text().splitlines()
    train = tmp_path / "positive.tsv"
    # One line of the other class: a training file of a single class is refused.
    other = next(line for line in lines if line.endswith("0"))
    alike = [line for line in lines if line.endswith("1")]
    train.write_text("\n".join([lines[0], other, *alike, ""]))
    words = ["--train", train, "--seeds", "1,2", "--max-epochs", 4]
    outcome = call(*world.glue(tmp_path / "run", *words))
    results = read(tmp_path / "run" / "results.json")
    assert results["collapsed"] == [1, 2]
    assert [run["collapsed"] for run in results["runs"]] == [True, True]
    assert len(results["metrics"]["accuracy"]["values"]) == 2
    assert "degenerate (one answer for every example): seed 1, 2" in outcome.err
    assert "degenerate" in call("evaluate", tmp_path / "run").err


# evaluate


def test_evaluate_gives_the_metrics_of_a_moved_run(
    world: World, tmp_path: Path, call: Call
) -> None:
    shutil.copytree(world.tuned, tmp_path / "moved")
    outcome = call("evaluate", tmp_path / "moved")
    assert outcome.json["metrics"] == read(world.tuned / "results.json")["metrics"]
    moved = (tmp_path / "moved" / "predictions" / "validation.jsonl").read_text()
    assert moved == (world.tuned / "predictions" / "validation.jsonl").read_text()


def test_evaluate_scores_another_split(world: World, tmp_path: Path, call: Call) -> None:
    shutil.copytree(world.tuned, tmp_path / "run")
    outcome = call("evaluate", tmp_path / "run", "--split", "train")
    assert outcome.json["split"] == "train"
    assert len(list(read_predictions(tmp_path / "run" / "predictions" / "train.jsonl"))) == 90


def test_evaluate_scores_all_validation_splits(world: World, tmp_path: Path, call: Call) -> None:
    folder = tmp_path / "glue_data" / "MNLI"
    folder.mkdir(parents=True)
    labels = ("entailment", "neutral", "contradiction")
    rows = [f"the cat {n}\tthe dog {n}\t{labels[n % 3]}" for n in range(12)]
    for name in ("train", "dev_matched", "dev_mismatched"):
        text = "\n".join(["sentence1\tsentence2\tgold_label", *rows, ""])
        (folder / f"{name}.tsv").write_text(text)
    run = tmp_path / "run"
    words = ["--config", world.glue_config, "--data", tmp_path, "--encoder", world.pretrained]
    outcome = call("glue", "mnli", *words, "--out", run)
    assert outcome.json["metrics"].keys() == {"accuracy", "validation_mismatched/accuracy"}
    assert call("evaluate", run).json == outcome.json


# help and settings


def test_help_lists_every_command(call: Call) -> None:
    for words in ([], ["--help"], ["help"]):
        outcome = call(*words)
        assert outcome.status == 0
        listed = set(re.findall(r"^  ([\w-]+)  ", outcome.out, re.M))
        assert listed == {*OWN, *families(), *COMMANDS}


WITH_FLAGS = [
    word
    for word in [*OWN, *families(), *COMMANDS]
    if word not in ("inspect", "baseline")  # whose kinds have their own
]


@pytest.mark.parametrize("command", WITH_FLAGS)
def test_help_of_a_command_explains_every_flag(command: str, call: Call) -> None:
    outcome = call(command, "--help-all")
    assert outcome.status == 0
    assert outcome.err == ""
    assert outcome.out.startswith(f"usage: finetune {command}")
    text = outcome.out.partition("options:\n")[2]
    flags = re.findall(r"^  (?:-\w, )?--[\w-]+.*(?:\n {20,}.*)*", text, re.M)
    assert flags
    assert [flag for flag in flags if len(flag.split()) < 3] == []


def test_help_shows_what_is_used_most_and_help_all_the_rest(call: Call) -> None:
    short, whole = (call("classify", flag).out for flag in ("--help", "--help-all"))
    listed = re.findall(r"^  (--[\w-]+)", short, re.M)
    assert len(listed) == 15
    assert {"--config", "--encoder", "--train", "--label-column", "--learning-rate"} <= {*listed}
    more = len(re.findall(r"^  (?:-h, )?--[\w-]+", whole, re.M)) - 15
    assert f"{more} more options: finetune classify --help-all" in short
    assert call("runs", "--help").out == call("runs", "--help-all").out


def test_version_is_that_of_the_package(call: Call) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", call("--version").out)


@pytest.mark.parametrize("command", ["pretrain", "glue"])
def test_printed_config_read_back_prints_the_same(
    command: str, world: World, tmp_path: Path, call: Call
) -> None:
    if command == "pretrain":
        words = world.pretrain(tmp_path / "run", "--learning-rate", "3e-5")
    else:
        words = world.glue(tmp_path / "run", "--seeds", "1,2", "--max-minutes", 0.5)
    first = call(*words, "--print-config")
    assert first.status == 0
    assert first.err == ""
    config = tmp_path / "config.yaml"
    config.write_text(first.out)
    start = ["glue", "sst2"] if command == "glue" else ["pretrain"]
    assert call(*start, "--config", config, "--print-config").out == first.out
    assert not (tmp_path / "run").exists()


def test_printed_config_is_that_of_the_run(world: World, call: Call) -> None:
    words = world.pretrain(world.pretrained, "--tokenizer", world.tokenizer)
    printed = yaml.safe_load(call(*words, "--print-config").out)
    used = yaml.safe_load((world.pretrained / "config.yaml").read_text())
    printed["encoder"]["vocab_size"] = 60  # what the tokenizer has, which no setting says
    assert printed == {**used, "cache_dir": None}


# describe and bench


def test_describe_takes_configs_runs_and_checkpoints(world: World, call: Call) -> None:
    best = world.pretrained / "checkpoints" / "best"
    of_config, of_run, of_checkpoint = (
        call("describe", source).out for source in (world.pretrain_config, world.pretrained, best)
    )
    assert of_config == of_run == of_checkpoint
    assert "2 blocks, hidden size 16" in of_run
    assert "vocabulary 60" in of_run  # the section `vocabulary` says it, not the encoder's default
    assert "The head" not in of_run


def test_describe_counts_the_head_of_a_fine_tuned_run(world: World, call: Call) -> None:
    # BERT's pooler, 16 x 16 and its bias, and two classes.
    outcome = call("describe", world.tuned)
    assert "The head (classification, pooling cls) has 306 parameters and takes 0.00 million" in (
        outcome.out
    )
    (counts,) = call("describe", world.tuned, "--json").json.values()
    assert counts["task_head"] == {
        "kind": "classification",
        "pooling": "cls",
        "parameters": 16 * 17 + 2 * 17,
        "flops_per_text": 2 * (16 * 16 + 2 * 16),
    }


def test_describing_a_fine_tuned_run_does_not_wait_for_lightning(world: World) -> None:
    script = (
        "import sys; from tasks.__main__ import main; main(sys.argv[1:]); "
        "sys.exit('pytorch_lightning' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, "describe", world.tuned], check=True)


@pytest.mark.parametrize("folder", ["pretrain", "glue"])
def test_describe_takes_every_shipped_config(folder: str, call: Call) -> None:
    shipped = [
        file
        for file in sorted((ROOT / "configs" / folder).glob("*.yaml"))
        if "encoder" in yaml.safe_load(file.read_text())
    ]
    if not shipped:
        pytest.skip(f"no config of configs/{folder} names an encoder")
    outcome = call("describe", *shipped)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("feed-forward ") >= len(shipped)


def test_describe_of_a_run_config_takes_its_tokenizer(world: World, call: Call) -> None:
    assert call("describe", world.pretrained / "config.yaml").out == (
        call("describe", world.pretrained).out
    )


def test_bench_measures_the_encoder_of_a_config(world: World, call: Call) -> None:
    quick = ["--seconds", 0.01, "--batch-size", 2]
    outcome = call("bench", world.pretrain_config, world.tuned, *quick)
    assert outcome.status == 0, outcome.err
    figures = dict(re.findall(r"^(\w+) +(\S+)", outcome.out, re.M))
    assert figures["batch_size"] == "2"
    assert figures["length"] == "32"  # no longer than its positions
    assert float(figures["step_ms"]) > 0


def test_settings_without_an_encoder_cannot_be_described(
    world: World, tmp_path: Path, call: Call
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("seed: 1\n")
    outcome = call("describe", config)
    assert outcome.status == 2
    assert outcome.err.startswith(f"finetune: {config}: expected an encoder (encoder: its sizes, ")
    assert outcome.err.count("\n") == 1


# Left to right


def test_a_causal_encoder_is_pretrained_and_reads_whole_texts(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    causal = tmp_path / "causal"
    made = call(*world.pretrain(causal, "--tokenizer", world.tokenizer, "--causal"))
    assert made.status == 0
    assert "next_token_accuracy" in made.json["metrics"]
    refuses(
        ".*pooling 'cls' reads the first token, .*choose last, mean, max or concat",
        *world.glue(tmp_path / "refused", "--pooling", "cls", encoder=causal),
    )
    assert not (tmp_path / "refused").exists()
    tuned = tmp_path / "tuned"
    assert call(*world.glue(tuned, encoder=causal)).status == 0
    assert load_checkpoint(tuned).head["pooling"] == "last"
    rows = read_predictions(tuned / "predictions" / "validation.jsonl")
    assert len({max(row["probabilities"].values()) for row in rows}) > len(rows) / 2
    again = call("evaluate", tuned)
    assert again.json["metrics"] == read(tuned / "results.json")["metrics"]
