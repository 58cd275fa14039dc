"""The session on a GPU, small and on a CPU: each part runs, what fails is said, nothing hangs."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
BLOCKED = ("datasets", "wandb", "evaluate", "jsonargparse")
"""Packages that a machine with a GPU may lack."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


@pytest.fixture
def alone(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session of one part, `parity`, that is whatever the test makes of it."""

    def run(part: Any, folder: Path) -> tuple[int, dict[str, Any]]:
        module = SimpleNamespace(parity=part)
        monkeypatch.setitem(sys.modules, "gpu_checks", module)
        status = gpu.main(["--tiny", "--here", "--parts", "parity", "--out", str(folder)])
        return status, json.loads((folder / "gpu.json").read_text())["parts"]["parity"]

    return run


@pytest.mark.filterwarnings("ignore")  # of others' packages, whose versions there are not ours
def test_the_parts_that_take_seconds_run_to_their_end(gpu: Any, tmp_path: Path) -> None:
    parts = ["parity", "precision", "pretraining", "fine-tuning", "loop"]
    status = gpu.main(["--tiny", "--here", "--parts", *parts, "--out", str(tmp_path)])
    torch.set_flush_denormal(False)
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert status == 0, figures
    assert list(figures["parts"]) == parts
    assert figures["versions"]["torch"] == torch.__version__
    check_speed(figures["parts"])
    asked = [row["asked"] for row in figures["goals"]]
    assert asked == [0.5, 1.3, *[3.0, 1.5] * 2, 1.0]
    page = (tmp_path / "gpu.md").read_text()
    for part in parts:
        assert f"## {part}: " in page
        assert f"| {part} | done |" in page


def check_speed(parts: dict[str, Any]) -> None:
    steps = parts["pretraining"]["tables"]["a pretraining step"]
    steps += parts["fine-tuning"]["tables"]["a fine-tuning step"]
    measured = [row for row in steps if "left_out" not in row]
    assert {row["who"] for row in measured} == {"finetune", "transformers"}
    assert {row["attention"] for row in steps} == {
        *("fused", "varlen", "sdpa", "eager", "flash_attention_2")
    }
    for row in measured:
        assert min(row["step_ms"], row["host_ms"], row["tokens_per_second"], row["peak_gib"]) > 0
        assert 0 < row["of_measured_peak"] < 1
    padding = {row["batches"]: row["padding"] for row in measured if "batches" in row}
    assert padding["no padding"] == 0 < padding["by length"] < padding["to max_length"]
    loop = parts["loop"]["tables"]
    assert all(row["batch_ms"] > 0 for row in loop["the loader alone"])
    runs = {row["config"]: row["batches_a_step"] for row in loop["a run with four workers"]}
    assert runs == {"base.yaml": 8, "ten-minutes.yaml": 4}


@pytest.mark.slow  # a process a part, and five runs that are interrupted or compared
def test_the_session_needs_no_package_that_the_machine_may_lack(tmp_path: Path) -> None:
    blocked = f"import sys\nfor name in {BLOCKED}:\n    sys.modules[name] = None\n"
    (tmp_path / "sitecustomize.py").write_text(blocked)
    words = [sys.executable, "benchmarks/gpu.py", "--tiny", "--minutes", "30"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    figures = json.loads((tmp_path / "out" / "gpu.json").read_text())["parts"]
    assert done.returncode == 0, (done.stderr, figures)
    tests = figures["tests"]["tables"]["tests marked gpu"][0]
    assert tests["tests"] > 70
    if not torch.cuda.is_available():
        assert tests["skipped"] == tests["tests"]
    signals = figures["interruption"]["tables"]["interrupted and resumed"]
    assert [row["exit_status"] for row in signals] == [-9, 143]


def test_a_part_that_fails_is_written_down_with_its_figures(alone: Any, tmp_path: Path) -> None:
    def fails(bench: Any) -> None:
        bench.add("losses", step=1, loss=2.0)
        raise RuntimeError("CUDA error: no kernel image\nmore of it")

    status, outcome = alone(fails, tmp_path)
    assert status == 1
    assert (outcome["status"], outcome["reason"]) == (
        "failed",
        "RuntimeError: CUDA error: no kernel image",
    )
    assert outcome["tables"] == {"losses": [{"step": 1, "loss": 2.0}]}


@pytest.mark.parametrize(("value", "passed"), [(1e-5, True), (2e-4, False), (float("nan"), False)])
def test_a_check_that_does_not_pass_is_the_status(
    value: float, passed: bool, alone: Any, tmp_path: Path
) -> None:
    status, outcome = alone(lambda bench: bench.check("difference", value, 1e-4), tmp_path)
    assert (status == 0) is passed
    assert outcome["status"] == "done"
    assert outcome["tables"]["checks"][0]["passed"] is passed


def test_one_figure_that_fails_leaves_the_others_and_is_the_status(
    alone: Any, tmp_path: Path
) -> None:
    def lacks(name: str) -> dict[str, Any]:
        raise ModuleNotFoundError(f"{name} is not installed")

    def too_large() -> dict[str, Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def part(bench: Any) -> None:
        bench.attempt("steps", {"who": "a"}, lambda: lacks("flash_attn"))
        bench.attempt("steps", {"who": "b"}, lambda: {"step_ms": 1.0})

    status, outcome = alone(part, tmp_path)
    assert status == 0  # what is left out is no failure
    assert outcome["tables"]["steps"] == [
        {"who": "a", "left_out": "flash_attn is not installed"},
        {"who": "b", "step_ms": 1.0},
    ]
    status, outcome = alone(lambda bench: bench.attempt("steps", {"who": "a"}, too_large), tmp_path)
    assert status == 1
    assert outcome["tables"]["steps"][0]["failed"] == "OutOfMemoryError: CUDA out of memory"


def test_a_part_that_hangs_is_stopped_at_its_limit(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "LEAVE", 0.1)
    outcome = gpu.in_a_process("parity", 0.3, tiny=True)  # before it has imported torch
    assert outcome["status"] == "stopped"
    assert outcome["seconds"] < 10
    assert gpu.in_a_process("parity", 0.1, tiny=True)["status"] == "left out"


def test_goals_are_ratios_of_the_best_rows(gpu: Any) -> None:
    def step(who: str, rate: float, **more: Any) -> dict[str, Any]:
        return {"who": who, "dtype": "bfloat16", "tokens_per_second": rate, "step_ms": 1.0, **more}

    pretraining = [
        step("finetune", 260.0, length=512, of_published_peak=0.48, of_measured_peak=0.6),
        step("transformers", 100.0, length=512),
        step("transformers", 200.0, length=512),
        {"who": "transformers", "dtype": "bfloat16", "length": 512, "left_out": "not installed"},
    ]
    tuning = [
        step("finetune", 140.0, texts="rte", batches="by length"),
        step("finetune", 900.0, texts="rte", batches="no padding"),
        step("finetune", 800.0, texts="rte", batches="any"),
        step("transformers", 100.0, texts="rte", batches="by length"),
        step("transformers", 40.0, texts="rte", batches="to max_length", dtype="float32"),
    ]
    loop = {
        "the loader alone": [{"length": 512, "tokens_per_second": rate} for rate in (3.0, 9.0)],
        "a run with four workers": [{"config": "a", "length": 512, "tokens_per_second": 6.0}],
    }
    tables = {"a pretraining step": pretraining, "a fine-tuning step": tuning, **loop}
    found = gpu.goals({"all": {"tables": tables}})
    assert [(row["value"], row["reached"]) for row in found] == [
        *((0.48, False), (0.6, True), (1.3, True), (3.5, True), (1.4, False), (1.5, True))
    ]
    assert gpu.goals({"all": {"tables": {}}}) == []


def test_times_are_taken_alone_and_after_the_checks(gpu: Any) -> None:
    order: list[str] = []

    def run(part: str, limit: float) -> dict[str, Any]:
        order.append(part)
        return {"status": "done", "tables": {}}

    parts = ["loop", "tests", "parity"]
    outcomes = gpu.session(parts, lambda part: 1.0, run, lambda outcomes: None, together=2)
    assert list(outcomes) == parts
    assert set(order[:2]) == {"tests", "parity"}
    assert order[2] == "loop"


def test_all_parts_fit_into_eight_minutes(gpu: Any) -> None:
    """The checks side by side, on the cores of such a machine, then each that is timed."""
    checks = [part.seconds for part in gpu.PARTS.values() if not part.alone]
    times = [part.seconds for part in gpu.PARTS.values() if part.alone]
    assert len(checks) <= 5
    assert max(checks) + sum(times) <= 7.5 * 60


def test_without_a_gpu_the_whole_session_is_refused(
    gpu: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == (
        "expected a CUDA device, got none; --tiny tries the script on a CPU\n"
    )
