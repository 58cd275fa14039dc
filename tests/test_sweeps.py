"""Every shipped sweep is understood, and would train with each of its values."""

from __future__ import annotations

import os
import re
import shlex
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tasks.__main__ import main
from tests.made.families import write_families

ROOT = Path(__file__).parent.parent
SWEEPS = sorted((ROOT / "configs" / "sweeps").glob("*.yaml"))
SIZES = {"hidden-size": 8, "num-hidden-layers": 2, "num-attention-heads": 2}
each = pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)


def printed(sweep: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The sweep as `wandb sweep` reads it."""
    capsys.readouterr()
    assert main(["sweep", str(sweep), "--out", "runs/sweeps", "--print", "wandb"]) == 0
    content: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return content


def values(parameter: dict[str, Any]) -> list[Any]:
    return parameter.get("values") or [parameter["min"], parameter["max"]]


def choices(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Each value of each parameter once, beside the first values of the others."""
    parameters = {name: values(one) for name, one in content["parameters"].items()}
    first = {name: found[0] for name, found in parameters.items()}
    return [first | {name: value} for name, found in parameters.items() for value in found]


def words(content: dict[str, Any], chosen: dict[str, Any]) -> list[str]:
    """What the shell makes of the command with the agent's arguments, without `finetune`."""
    arguments = [f"--{name}={value}" for name, value in chosen.items()]
    command = content["command"]
    assert command[-1] == "${args}"
    shell = [*command[:-1], *arguments]
    shell[2] = shell[2].replace("finetune ", "printf '%s\\n' ", 1)
    environment = {**os.environ, "WANDB_RUN_ID": "id12"}
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the tasks that are swept over, and a vocabulary of letters."""
    folder: Path = tmp_path_factory.mktemp("small")
    write_families(folder)
    for name, header, row in (
        ("SST-2", "sentence\tlabel", "a\t1\nb\t0"),
        (
            "RTE",
            "index\tsentence1\tsentence2\tlabel",
            "0\ta\tb\tentailment\n1\tb\tc\tnot_entailment",
        ),
    ):
        place = folder / "data" / "glue_data" / name
        place.mkdir(parents=True, exist_ok=True)
        for split in ("train", "dev"):
            (place / f"{split}.tsv").write_text(f"{header}\n{row}\n")
    trec = folder / "data" / "trec"
    trec.mkdir(parents=True, exist_ok=True)
    kinds = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    lines = "".join(f"{kind}:x what is {n} ?\n" for n in range(10) for kind in kinds)
    for name in ("train_5500.label", "TREC_10.label"):
        (trec / name).write_text(lines)
    letters = [string.ascii_letters + string.digits + " " + " ".join(string.ascii_lowercase)]
    train_tokenizer(letters * 2, TokenizerConfig(vocab_size=100)).save(folder / "tokenizer")
    return folder


def test_there_are_sweeps() -> None:
    names = {path.stem for path in SWEEPS}
    of_papers = {"depth", "heads", "local", "norm"}
    assert names == {"masking", "pooling", "rte", "schedule", "unfreezing"} | of_papers


@each
def test_each_choice_would_train_in_a_folder_of_its_own(
    sweep: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    content = printed(sweep, capsys)
    for chosen in choices(content):
        command = words(content, chosen)
        assert command[command.index("--out") + 1] == "runs/sweeps/id12"
        if command[0] == "pretrain":
            assert main([*command, "--print-config"]) == 0, capsys.readouterr().err
            continue
        command[command.index("--encoder") + 1] = "none"
        command[command.index("--data") + 1] = str(small / "data")
        flags = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]
        flags += ["--tokenizer", str(small / "tokenizer"), "--cache-dir", str(small / "cache")]
        assert main([*command, *flags, "--dry-run"]) == 0, capsys.readouterr().err
        assert not (ROOT / "runs" / "sweeps" / "id12").exists()


@each
def test_its_header_has_its_command_and_its_runs_are_listed(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    header = [line[1:].strip() for line in sweep.read_text().splitlines() if line[:1] == "#"]
    (command,) = [shlex.split(line)[1:] for line in header if line.startswith("finetune ")]
    assert command == ["sweep", f"configs/sweeps/{sweep.name}"]
    assert main([*command, "--dry-run"]) == 0, capsys.readouterr().err
    *runs, total = capsys.readouterr().out.splitlines()
    said = re.search(r"(\d+) runs", sweep.read_text()) or re.search(
        r"(\d+) draws", sweep.read_text()
    )
    assert total.startswith(f"{len(runs)} runs, ")
    assert said is None or int(said[1]) == len(runs)


@each
def test_what_weights_and_biases_looks_for_is_what_a_summary_has(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    content = printed(sweep, capsys)
    of_pretraining = {"name": "best/loss", "goal": "minimize"}
    of_a_task = {"name": "best/headline", "goal": "maximize"}
    said = yaml.safe_load(sweep.read_text())
    pretrains = said["command"].startswith("pretrain")
    assert content["metric"] == (of_pretraining if pretrains else of_a_task)
    assert content["name"] == sweep.stem
    halves = not pretrains and said.get("fresh", "half") == "half"
    assert ("--choose-on-half" in content["command"][2]) == halves


def test_arguments_are_written_as_the_agent_writes_them() -> None:
    sweeps = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    given = {"unfreeze": "lp-ft", "learning-rate": 0.0003}
    made = sweeps.create_sweep_command_args({"args": {k: {"value": v} for k, v in given.items()}})
    content = {"command": ["sh", "-c", 'finetune x "$@"', "finetune", "${args}"]}
    assert words(content, given) == ["x", *made["args"]]
