"""`--json`: every command has it, and stdout then holds one JSON object and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import yaml

from finetune.cli.commands import command_table
from finetune.cli.completion import read_pages
from finetune.dashboards import spec
from finetune.training.prefix.store import Entry, Writer, digest
from tasks import demo
from tasks.__main__ import COMMANDS

if TYPE_CHECKING:
    from tests.made.commands import Call, Outcome
    from tests.made.world import World


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def content(outcome: Outcome) -> Any:
    """What a command that ended well told."""
    assert outcome.status == 0, outcome.err
    found = outcome.json
    assert isinstance(found, dict)
    return found


def test_every_command_but_the_script_for_shells_has_it() -> None:
    without = [
        page.path
        for page in read_pages(command_table(COMMANDS))
        if not page.kinds and "--json" not in {option.flag for option in page.options}
    ]
    assert without == ["completion"]


def test_settings_are_printed_as_json_too(world: World, tmp_path: Path, call: Call) -> None:
    words = world.glue(tmp_path / "run", "--print-config")
    assert content(call(*words, "--json")) == yaml.safe_load(call(*words).out)


def test_describe_gives_the_counts_of_each_encoder(world: World, call: Call) -> None:
    found = content(call("describe", world.pretrain_config, world.tuned, "--json"))
    assert list(found) == [str(world.pretrain_config), str(world.tuned)]
    for counts in found.values():
        assert counts["encoder"]["hidden_size"] == 16
        assert counts["parameters"] == sum(one["parameters"] for one in counts["parts"].values())
        assert list(counts["flops_per_token"]) == ["64", "256", "1024", "4096"]


def test_bench_gives_the_figures_of_each_encoder(world: World, call: Call) -> None:
    quick = ["--seconds", 0.01, "--batch-size", 2]
    found = content(call("bench", world.pretrain_config, world.tuned, *quick, "--json"))
    assert list(found) == [str(world.pretrain_config), str(world.tuned)]
    assert all(figures["step_ms"] > 0 and figures["length"] == 32 for figures in found.values())


def keep_states(folder: Path, about: str) -> int:
    """Put the states of three texts into a cache; returns their bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.array([2, 1, 3])
    entry = Entry("made", about, 1, 4, "fp32", 3, 6, digest(lengths.tobytes()))
    with Writer(folder, entry, lengths) as writer:
        writer.write(range(3), torch.ones(3, 3, 4))
        writer.finish()
    return entry.bytes


def test_cache_lists_its_entries_and_tells_what_it_freed(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = ["cache", "list", "--cache-dir", tmp_path / "own", "--json"]
    folder = str(tmp_path / "own" / "hidden")
    assert content(call(*words)) == {"folder": folder, "entries": []}
    size = keep_states(tmp_path / "own" / "hidden", "Ünïcode, 3 texts")
    entry = {
        "set": "Ünïcode, 3 texts",
        "encoder": "",
        "depth": 1,
        "precision": "fp32",
        "sequences": 3,
    }
    assert content(call(*words)) == {"folder": folder, "entries": [{**entry, "bytes": size}]}
    freed = content(call("cache", "clear", *words[2:]))
    assert freed["folder"] == folder
    assert freed["freed_bytes"] >= size
    assert content(call(*words))["entries"] == []


def test_attention_tells_what_was_read_and_where_the_files_are(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = ["inspect", "attention", world.tuned, "the cat", "a dög", "--out", tmp_path / "out"]
    outcome = call(*words, "--json", "--quiet")
    assert outcome.err == ""
    found = content(outcome)
    files = [f"{tmp_path}/out/attention.json", f"{tmp_path}/out/attention.html"]
    assert found["files"] == files
    assert all(Path(file).is_file() for file in files)
    whole = read(tmp_path / "out" / "attention.json")
    assert {**found, "weights": whole["weights"]} == {**whole, "files": files}


def test_report_tells_the_page_the_runs_and_what_is_wrong(
    world: World, tmp_path: Path, call: Call
) -> None:
    page, gone = tmp_path / "page.html", tmp_path / "gone"
    outcome = call("report", world.tuned, gone, "--out", page, "--json")
    found = content(outcome)
    assert found["report"] == str(page)
    assert found["runs"] == ["tuned"]
    told = {"place": str(gone), "problem": outcome.err.rstrip().removeprefix(f"{gone}: ")}
    assert told in found["problems"]


def test_dashboard_tells_the_file(tmp_path: Path, call: Call) -> None:
    pytest.importorskip("wandb_workspaces")
    file = tmp_path / "spec.json"
    outcome = call("dashboard", "--entity", "me", "--spec", file, "--json")
    assert content(outcome) == {"spec": str(file)}
    assert read(file).keys() == {"workspace", "report"}


def test_dashboard_tells_the_addresses(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "save", lambda entity, project: ["https://one", "https://two"])
    assert content(call("dashboard", "--entity", "me", "--json")) == {
        "workspace": "https://one",
        "report": "https://two",
    }
    assert call("dashboard", "--entity", "me").out == "https://one\nhttps://two\n"


def test_export_tells_where_it_is(world: World, tmp_path: Path, call: Call) -> None:
    outcome = call("export", world.tuned, "--format", "hf", "--out", tmp_path / "out", "--json")
    assert content(outcome) == {
        "out": str(tmp_path / "out"),
        "format": "hf",
        "architecture": "BertForSequenceClassification",
        "lacking": [],
    }
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_import_tells_every_tensor(world: World, tmp_path: Path, call: Call) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    assert call("export", world.tuned, "--format", "hf", "--out", theirs).status == 0
    found = content(call("import-hf", theirs, "--out", ours, "--json"))
    assert found["out"] == str(ours)
    assert len(found["kept"]) == found["tensors"] > 10


def test_submit_tells_what_was_packed_and_what_a_check_found(
    world: World, tmp_path: Path, call: Call
) -> None:
    run, out = tmp_path / "run", tmp_path / "glue.zip"
    shutil.copytree(world.tuned, run)
    file = tmp_path / "data" / "glue_data" / "SST-2" / "test.tsv"
    file.parent.mkdir(parents=True)
    file.write_text("index\tsentence\n0\tthe cat\n1\ta dog\n")
    words = ["submit", run, "--out", out, "--data", tmp_path / "data", "--json"]
    found = content(call(*words, "--allow-subset", "--allow-missing"))
    assert (found["zip"], found["files"], found["average"]) == (str(out), {"SST-2.tsv": 2}, None)
    assert len(found["missing"]) == 10
    assert found["runs"] == {"sst2": str(run)}
    assert found["metrics"]["sst2"] == read(run / "results.json")["metrics"]
    check = ["submit", "--check", out, "--json"]
    found = content(call(*check, "--allow-subset", "--allow-missing"))
    assert found == {"zip": str(out), "complete": False, "problems": []}
    refused = call(*check)
    assert refused.status == 2
    assert refused.json["problems"] == [
        line.removeprefix("finetune: ") for line in refused.err.splitlines()
    ]
    assert call(*words).status == 2  # ten files are missing
    assert call(*words).out == ""


def test_compare_gives_all_figures(world: World, tmp_path: Path, call: Call) -> None:
    other = tmp_path / "other"
    shutil.copytree(world.tuned, other)
    found = content(call("compare", world.tuned, other, "--json"))
    assert "accuracy" in json.dumps(found)


def test_demo_gives_its_table(tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_demo(out: Path, seed: int) -> dict[str, demo.Scores]:
        print("for people")
        return {"glue/sst2": (0.5, 0.6, 0.9)}

    monkeypatch.setattr(demo, "run_demo", run_demo)
    outcome = call("demo", "--out", tmp_path, "--json")
    scores = {"trivial": 0.5, "scratch": 0.6, "pretrained": 0.9}
    assert content(outcome) == {"glue/sst2": scores}
    assert outcome.err == "for people\n"
