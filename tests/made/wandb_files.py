"""Reads what a finished offline run wrote: its .wandb file and the tables beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def records(run_dir: Path) -> list[Any]:
    """Read the finished offline runs of a folder, in the order of their start."""
    return [record for file in sorted(run_dir.glob("wandb/*/*.wandb")) for record in whole(file)]


def whole(file: Path) -> list[Any]:
    """Read a run's file; its writer is another process, which may take a moment to end it."""
    for _ in range(200):
        found = list(parse(file.read_bytes()))
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end")


def parse(data: bytes) -> Iterator[Any]:
    """Read a .wandb file: a LevelDB log of protocol buffers, after seven bytes of its own."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    at, record, block = 7, b"", 32768
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4) and at <= len(data):  # whole, or the last part
            yield internal.Record.FromString(record)
            record = b""


def items(message: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in message}


def history(run_dir: Path) -> list[dict[str, Any]]:
    rows = [items(r.history.item) for r in records(run_dir) if r.HasField("history")]
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]


def run_record(run_dir: Path) -> Any:
    return next(r.run for r in records(run_dir) if r.HasField("run"))


def summary(run_dir: Path) -> dict[str, Any]:
    """The summary in the end; what is nested has dots in its name."""
    found: dict[str, Any] = {}
    for record in records(run_dir):
        found |= items(record.summary.update)
    return found


def best(run_dir: Path) -> dict[str, Any]:
    """The summary without what Weights & Biases adds."""
    return {name: value for name, value in summary(run_dir).items() if not name.startswith("_")}


def definitions(run_dir: Path) -> dict[str, tuple[str, str]]:
    """Name -> the metric that is its axis, and what the summary keeps of it."""
    kept = ("min", "max", "mean", "last")
    return {
        m.name: (m.step_metric, next((name for name in kept if getattr(m.summary, name)), ""))
        for m in (r.metric for r in records(run_dir) if r.HasField("metric"))
    }


def table(run_dir: Path, name: str) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table that was logged under a name."""
    path = summary(run_dir)[f"{name}.path"]
    (file,) = run_dir.glob(f"wandb/*/files/{path}")
    content = json.loads(file.read_text())
    return content["columns"], content["data"]


def artifacts(run_dir: Path) -> dict[str, Any]:
    """Artifacts by type, those of tables left out; one that was used has a type of `used TYPE`."""
    found = [r.artifact for r in records(run_dir) if r.HasField("artifact")]
    return {
        ("used " if one.use_after_commit else "") + one.type: one
        for one in found
        if one.type != "run_table"
    }
