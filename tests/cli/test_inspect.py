"""`finetune inspect`, and the masks that `finetune predict` fills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import finetune
from finetune.inspection import plots

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_attention_of_a_pair_is_written_as_json_page_and_picture(
    world: World, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "out"
    words = ["inspect", "attention", world.tuned, "the cat", "a <b>dog</b>", "--out", out]
    outcome = call(*words, "--layer", 2, "--head", 1)
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [f"{out}/attention.json", f"{out}/attention.html"]
    found = content(out / "attention.json")
    assert found["texts"] == ["the cat", "a <b>dog</b>"]
    assert found["run"] == str(world.tuned)
    assert (found["layers"], found["heads"]) == (2, 2)
    page = (out / "attention.html").read_text(encoding="utf-8")
    assert '"layer": 1, "head": 0' in page
    pytest.importorskip("matplotlib")
    assert call(*words, "--png").status == 0
    assert (out / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_minimal_pairs_judge_a_pretraining_run(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    file, good = tmp_path / "pairs.jsonl", "the cat saw a dog"
    row = {"sentence_good": good, "sentence_bad": "cat dog the saw a", "UID": "order"}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = ["inspect", "pairs", world.pretrained, "--file", file, "--out", tmp_path]
    outcome = call(*words)
    assert outcome.status == 0
    header, _, first, last = outcome.out.splitlines()
    assert header.split()[:2] == ["pseudo-log-likelihood", "pairs"]
    assert (first.split()[0], last.split()[0]) == ("order", "all")
    found = content(tmp_path / "pairs.json")
    assert found["pairs"][0]["good"] == good
    summary = json.loads(call(*words, "--json").out)
    assert summary == {name: value for name, value in found.items() if name != "pairs"}
    message = ".*: expected a pretraining run, whose head names words, got a head of the kind.*"
    refuses(message, *words[:2], world.tuned, *words[3:])


def test_layers_of_one_run_and_what_the_head_reads_off_them(
    world: World, tmp_path: Path, call: Call
) -> None:
    text = tmp_path / "texts.txt"
    text.write_text("the cat saw a dog\na dog\n", encoding="utf-8")
    words = ["inspect", "similarity", world.pretrained, "--input", text, "--out", tmp_path]
    outcome = call(*words)
    assert outcome.status == 0
    assert outcome.out.splitlines()[0].split()[0] == "layer"
    found = content(tmp_path / "similarity.json")
    assert [layer["name"] for layer in found["layers"]] == ["embeddings", "block 1", "block 2"]
    assert (
        call("report", world.pretrained, "--inside", tmp_path, "--out", tmp_path / "r.html").status
        == 0
    )
    outcome = call("inspect", "logit-lens", world.pretrained, "the cat", "a dog", "--out", tmp_path)
    assert outcome.status == 0
    assert content(tmp_path / "logit-lens.json")["texts"][1]["text"] == "a dog"


def test_heads_are_summarised_over_the_runs_own_task(
    world: World, tmp_path: Path, call: Call
) -> None:
    outcome = call("inspect", "heads", world.tuned, "--limit", 20, "--out", tmp_path)
    assert outcome.status == 0
    assert outcome.out.splitlines()[-1].startswith("uniform")
    found = content(tmp_path / "heads.json")
    assert found["texts"] == "glue/sst2 validation"
    assert found["sequences"] == 20


def test_layers_are_probed_before_and_after_fine_tuning(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = ["inspect", "probe", world.pretrained, world.tuned, "--seeds", "1,2", "--untrained"]
    outcome = call(*words, "--out", tmp_path)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    columns = ["glue/sst2:", "accuracy", "(%)", "pretrained", "tuned", "untrained"]
    assert lines[0].split() == columns
    assert max(map(len, lines)) <= 80
    found = content(tmp_path / "probe.json")
    assert list(found["groups"]) == ["pretrained", "tuned", "untrained"]
    assert found["groups"]["tuned"][0]["run"] == str(world.tuned)
    assert found["groups"]["tuned"][0]["examples"] == {"train": 90, "validation": 30}


def test_seeds_are_compared_with_what_they_came_from(
    world: World, tmp_path: Path, call: Call
) -> None:
    seeds = tmp_path / "seeds"
    assert call(*world.glue(seeds, "--seeds", "1,2", "--max-epochs", "1")).status == 0
    pytest.importorskip("matplotlib")
    words = ["inspect", "similarity", world.pretrained, seeds, "--png", "--out", tmp_path]
    outcome = call(*words)
    assert outcome.status == 0
    header = outcome.out.splitlines()[0].split("  ")
    assert [part.strip() for part in header if part] == [
        "same layer, linear CKA",
        "pretrained – seeds",
        "within seeds",
    ]
    found = content(tmp_path / "similarity.json")
    assert [Path(run).name for run in found["runs"]] == ["pretrained", "seed-1", "seed-2"]
    assert len(found["pairs"]) == 3
    assert (tmp_path / "similarity.png").read_bytes().startswith(b"\x89PNG")
    probe = ["inspect", "probe", seeds, "--seeds", "1", "--png", "--out", tmp_path]
    assert call(*probe).status == 0
    assert len(content(tmp_path / "probe.json")["groups"]["seeds"]) == 2
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


def test_nearest_words_are_told(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call("inspect", "words", world.pretrained, "cat", "the", "--count", 3)
    assert outcome.status == 0
    assert outcome.out.count("cosine") == 2
    assert content(tmp_path / "inspection" / "words.json")["words"][0]["word"] == "cat"


def test_loss_by_frequency_adds_up_to_the_runs_own(
    world: World, tmp_path: Path, call: Call
) -> None:
    outcome = call("inspect", "frequency", world.pretrained, "--out", tmp_path)
    assert outcome.status == 0
    assert outcome.out.splitlines()[-1].startswith("all")
    found = content(tmp_path / "frequency.json")
    recorded = content(world.pretrained / "results.json")["metrics"]
    assert found["loss"] == pytest.approx(recorded["loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(recorded["masked_accuracy"], rel=1e-5)
    weighed = sum(one["tokens"] * (one["loss"] or 0) for one in found["bins"])
    assert weighed / found["tokens"] == pytest.approx(found["loss"])


def test_predict_fills_masks_of_a_pretraining_run(world: World, tmp_path: Path, call: Call) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("the [MASK] sees a dog\n[MASK] cat\n")
    words = ["predict", world.pretrained, "--input", source, "--top-k", 2]
    assert call(*words, "--output", target).status == 0
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [(row["id"], row["text"]) for row in rows] == [
        (0, "the [MASK] sees a dog"),
        (1, "[MASK] cat"),
    ]
    assert [[mask["position"] for mask in row["masks"]] for row in rows] == [[4], [0]]
    assert [len(row["masks"][0]["candidates"]) for row in rows] == [2, 2]
    assert [json.loads(line) for line in call(*words).out.splitlines()] == rows
    alike = finetune.load(world.pretrained).predict([row["text"] for row in rows])
    assert [mask["candidates"][:2] for row in alike for mask in row["masks"]] == [
        mask["candidates"] for row in rows for mask in row["masks"]
    ]


def test_wrong_masks_are_one_line_and_nothing_is_written(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("the [MASK]\nthe cat\n")
    words = ["predict", world.pretrained, "--input", source, "--output", target]
    refuses(r".*in\.txt:2: expected a text with \[MASK\] in it, got none in 'the cat'.*", *words)
    assert not target.exists()
    refuses(
        ".*--top-k is for runs that fill masks; .*",
        "predict",
        world.tuned,
        *words[2:],
        "--top-k",
        3,
    )


def test_bad_words_are_one_line(world: World, tmp_path: Path, refuses: Refuses) -> None:
    out = ["--out", tmp_path / "out"]
    refuses("inspect: unknown kind 'head'; did you mean 'heads'.", "inspect", "head")
    refuses(
        "--layer: expected 1 to 2, got 3",
        *("inspect", "attention", world.tuned, "the", "--layer", 3, *out),
    )
    refuses(
        "--head: expected 1 to 2, got 0", "inspect", "attention", world.tuned, "the", "--head", 0
    )
    refuses(".*fine-tuning run.*--task glue/sst2", "inspect", "heads", world.pretrained, *out)
    refuses(".*fine-tuning run.*--task glue/sst2", "inspect", "similarity", world.pretrained, *out)
    refuses(
        "--pooling must be one of cls, .*, got 'meen'; did you mean 'mean'.*",
        "inspect",
        "probe",
        world.tuned,
        "--pooling",
        "meen",
        *out,
    )
    refuses(
        ".*--seeds: expected a whole number from 0 .*, got 'x'.*",
        "inspect",
        "probe",
        world.tuned,
        "--seeds",
        "x",
        *out,
    )
    refuses(".*no/run.*", "inspect", "words", "no/run", "cat", *out)
    refuses(".*expected a word of the vocabulary.*", "inspect", "words", world.tuned, "犬", *out)
    refuses(
        ".*run that was made to pretrain.*another kind", "inspect", "frequency", world.tuned, *out
    )
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    refuses(
        ".*is a file; name a folder",
        *("inspect", "words", world.tuned, "cat", "--out", tmp_path / "file"),
    )


def test_picture_without_matplotlib_is_refused_before_the_work(
    world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "is_installed", lambda name: False)
    refuses(
        r"--png needs matplotlib, which is not installed; run pip install 'finetune\[plots\]'",
        *("inspect", "attention", world.tuned, "the", "--png", "--out", tmp_path / "out"),
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "kind", ["", "attention", "heads", "probe", "similarity", "words", "frequency"]
)
def test_help_says_what_the_figures_do_not(kind: str, call: Call) -> None:
    outcome = call("inspect", *([kind] if kind else []), "--help")
    assert outcome.status == 0
    assert "inspect" in outcome.out
    cautions = {"attention": "Jain and Wallace", "heads": "does nothing", "probe": "Belinkov"}
    assert cautions.get(kind, "") in outcome.out


def test_frequency_reads_an_adapted_run_too(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    out, quick = tmp_path / "adapted", ["--max-steps", "3", "--max-length", "16"]
    words = ["adapt", "--encoder", world.pretrained, "--corpus", world.corpus, "--out", out]
    assert call(*words, *quick, "--no-wandb").status == 0
    assert call("inspect", "frequency", out, "--out", tmp_path).status == 0
    recorded = content(out / "results.json")["metrics"]
    assert content(tmp_path / "frequency.json")["loss"] == pytest.approx(recorded["loss"], rel=1e-5)
    on_task = ["adapt", "--encoder", world.pretrained, "--task", "glue/sst2", "--data", world.data]
    task_run = tmp_path / "task"
    assert call(*on_task, *quick, "--no-wandb", "--out", task_run).status == 0
    refuses(
        ".*its corpus is a task's own text; name files by --corpus",
        *("inspect", "frequency", task_run, "--out", tmp_path),
    )
