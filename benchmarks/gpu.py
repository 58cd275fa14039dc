"""First contact with a GPU: is it right there, does it resume, how fast is it beside transformers.

One CUDA device, no network and no data: the text is this project's own, or made. Each part is a
process of its own with a limit of time; what fails is written down, and the others go on.

    make gpu                                  (or: python benchmarks/gpu.py --out runs/gpu)
    python benchmarks/gpu.py --tiny           the same parts, small: on a CPU, to try the script

`gpu.json` has every figure, `gpu.md` shows them. The status is 1 if a check or a part has failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from gpu_bench import FULL, ROOT, TINY, Bench, Row, Scale, reason

sys.path.insert(0, str(ROOT))  # finetune need not be installed

LEAVE = 12.0
"""Seconds of a part's limit that its figures do not get: imports, and the end."""
PATIENCE = 4
"""Times the limits where the sizes are small: it is a test, on a machine that has other work."""


@dataclass(frozen=True)
class Part:
    """A part of the session."""

    place: str
    """MODULE:FUNCTION, which takes a `Bench`."""
    seconds: float
    """Limit, the start of its process included."""
    alone: bool
    """Whether its figures are times, which nothing beside it may disturb."""


PARTS = {
    "tests": Part("gpu_checks:tests", 110, alone=False),
    "parity": Part("gpu_checks:parity", 110, alone=False),
    "precision": Part("gpu_checks:precision", 110, alone=False),
    "determinism": Part("gpu_checks:determinism", 110, alone=False),
    "interruption": Part("gpu_checks:interruption", 150, alone=False),
    "pretraining": Part("gpu_speed:pretraining", 110, alone=True),
    "fine-tuning": Part("gpu_speed:fine_tuning", 90, alone=True),
    "loop": Part("gpu_loop:loop", 100, alone=True),
}
"""Together less than eight minutes: the checks at the same time, then the times one by one."""


def take(part: str, bench: Bench) -> Row:
    """Run a part in this process; the outcome, whatever becomes of it."""
    module, _, function = PARTS[part].place.partition(":")
    try:
        getattr(importlib.import_module(module), function)(bench)
    except Exception as error:
        traceback.print_exc()
        return {"status": "failed", "reason": reason(error), "tables": bench.tables}
    return {"status": "done", "tables": bench.tables}


def find_device() -> Any:
    """The GPU, or the CPU where there is none."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def in_a_process(part: str, limit: float, *, tiny: bool, threads: int | None = None) -> Row:
    """Run a part in a process of its own, and stop it at its limit."""
    began = time.perf_counter()
    if limit < 2 * LEAVE:
        return {"status": "left out", "reason": "no time was left", "seconds": 0.0, "tables": {}}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "part.json", Path(folder) / "log"
        words = [sys.executable, __file__, "--part", part, "--seconds", str(limit - LEAVE)]
        words += ["--file", str(file), *(["--tiny"] if tiny else [])]
        with log.open("wb") as output:
            process = subprocess.Popen(
                words,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # its own processes end with it
                env=environment,
                cwd=ROOT,
            )
            status = _wait(process, limit)
        outcome: Row = json.loads(file.read_text("utf-8")) if file.is_file() else {"tables": {}}
        text = log.read_text("utf-8", errors="replace")
    if status is None:
        outcome |= {"status": "stopped", "reason": f"it was not done after {limit:.0f} s"}
    elif "status" not in outcome:
        lines = text.strip().splitlines() or [""]
        outcome |= {"status": "failed", "reason": f"exit status {status}: {lines[-1][:300]}"}
    if outcome["status"] != "done":
        outcome["log"] = text[-4000:]
    return outcome | {"seconds": round(time.perf_counter() - began, 1)}


def _python_path() -> list[str]:
    return [entry for entry in [os.environ.get("PYTHONPATH", "")] if entry]


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The status of a process and all that it started; None if they had to be stopped."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def session(
    parts: Sequence[str],
    limits: Callable[[str], float],
    run: Callable[[str, float], Row],
    save: Callable[[dict[str, Row]], None],
    *,
    together: int,
) -> dict[str, Row]:
    """Run the checks side by side, then the times one after another.

    Args:
        parts: Which.
        limits: Part -> seconds it may still take, asked when it begins.
        run: Takes a part and its limit, gives its outcome.
        save: Takes the outcomes so far, after each.
        together: Processes side by side; 1: everything in this thread, which alone gets signals.
    """
    outcomes: dict[str, Row] = {}
    one_at_a_time = Lock()

    def taken(part: str) -> None:
        outcome = run(part, limits(part))
        with one_at_a_time:
            outcomes[part] = outcome
            print(f"{part}: {outcome['status']}", flush=True)
            save({name: outcomes[name] for name in parts if name in outcomes})

    beside = [part for part in parts if not PARTS[part].alone and together > 1]
    with ThreadPoolExecutor(together) as pool:
        for done in [pool.submit(taken, part) for part in beside]:
            done.result()
    for part in parts:
        if part not in beside:
            taken(part)
    return {name: outcomes[name] for name in parts}


def about(device: Any) -> Row:
    """The device, the machine and the versions."""
    import torch

    from finetune.machine.circumstances import circumstances

    facts: Row = {"device": "cpu", "python": platform.python_version()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"device": properties.name, "memory_gib": properties.total_memory / 2**30}
        facts |= {"capability": f"{properties.major}.{properties.minor}"}
        facts |= {"cuda": torch.version.cuda}
    return facts | {"float32_matmul": torch.get_float32_matmul_precision()} | circumstances()


def all_passed(outcomes: Mapping[str, Row]) -> bool:
    """Whether each part was done, each check passed and each measurement gave figures."""
    rows = [
        row
        for outcome in outcomes.values()
        for table in outcome["tables"].values()
        for row in table
    ]
    done = all(outcome["status"] == "done" for outcome in outcomes.values())
    return done and all(row.get("passed", True) and "failed" not in row for row in rows)


def goals(outcomes: Mapping[str, Row]) -> list[Row]:
    """What is asked of the figures, and what they are; a goal without figures is left out."""
    tables = {
        title: rows for outcome in outcomes.values() for title, rows in outcome["tables"].items()
    }
    return [
        *_pretraining_goals(tables.get("a pretraining step", [])),
        *_tuning_goals(tables.get("a fine-tuning step", [])),
        *_loader_goals(tables),
    ]


def _goal(what: str, value: float, asked: float) -> Row:
    return {"goal": what, "value": value, "asked": asked, "reached": value >= asked}


def _rate(rows: Iterable[Row], **wanted: object) -> float:
    """The largest number of tokens a second among rows that are so; 0 if there is none."""
    same = (row for row in rows if wanted.items() <= row.items())
    return max((row.get("tokens_per_second", 0.0) for row in same), default=0.0)


def _pretraining_goals(rows: Sequence[Row]) -> Iterable[Row]:
    """Half of the peak, and 1.3 times the best path of `transformers`."""
    half = [row for row in rows if row.get("dtype") == "bfloat16" and "step_ms" in row]
    ours = [row for row in half if row["who"] == "finetune"]
    for name in ("of_published_peak", "of_measured_peak"):
        if shares := [row[name] for row in ours if name in row]:
            yield _goal(f"MLM step, bf16: {name}, real tokens", max(shares), 0.5)
    for length in dict.fromkeys(row["length"] for row in half):
        mine, best = (_rate(half, length=length, who=who) for who in ("finetune", "transformers"))
        if mine and best:
            yield _goal(f"MLM step, T = {length}: of the best transformers path", mine / best, 1.3)


def _tuning_goals(rows: Sequence[Row]) -> Iterable[Row]:
    """Three times Trainer as it comes, and 1.5 times its best setting."""
    for texts in dict.fromkeys(row["texts"] for row in rows):
        # Not without padding to begin with, nor "any": there is no attention dropout in that one.
        same = [
            row
            for row in rows
            if row["texts"] == texts and row["batches"] not in ("no padding", "any")
        ]
        mine = _rate(same, who="finetune")
        as_it_comes = {"batches": "to max_length", "dtype": "float32"}
        for what, wanted, asked in (("default", as_it_comes, 3.0), ("best", {}, 1.5)):
            if mine and (theirs := _rate(same, who="transformers", **wanted)):
                title = f"fine-tuning, lengths of {texts}: of transformers' {what}"
                yield _goal(title, mine / theirs, asked)


def _loader_goals(tables: Mapping[str, Sequence[Row]]) -> Iterable[Row]:
    """Batches that are made faster than they are trained on."""
    loaders = [row for row in tables.get("the loader alone", []) if "tokens_per_second" in row]
    for run in tables.get("a run with four workers", []):
        same = [r["tokens_per_second"] for r in loaders if r["length"] == run["length"]]
        if same and "tokens_per_second" in run:
            title = f"loader, {run['config']}, T = {run['length']}: its tokens/s of the run's"
            yield _goal(title, max(same) / run["tokens_per_second"], 1.0)


def page(facts: Row, outcomes: Mapping[str, Row]) -> str:
    """The figures as Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    lines = [f"# First contact with a GPU: {facts['device']}", ""]
    lines += [f"{facts['finished']}; {versions}.", ""]
    lines += _table(
        [
            {
                "part": name,
                "status": outcome["status"],
                "seconds": outcome.get("seconds"),
                "reason": outcome.get("reason", ""),
            }
            for name, outcome in outcomes.items()
        ]
    )
    if asked := goals(outcomes):
        lines += ["", "## What is asked of the speed", "", *_table(asked)]
    for name, outcome in outcomes.items():
        for title, rows in outcome["tables"].items():
            lines += ["", f"## {name}: {title}", "", *_table(rows)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    header = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_cell(row.get(name, "")) for name in header] for row in rows]
    titles = [name.replace("_", " ") for name in header]
    return [_line(titles), _line(["---"] * len(header)), *map(_line, body)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts, and write the two files after each; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "gpu", help="folder to write")
    parser.add_argument("--minutes", type=float, default=7.5, help="limit for all parts together")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--tiny", action="store_true", help="small sizes; a CPU will do")
    parser.add_argument("--here", action="store_true", help="all in this process, without limits")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    scale = TINY if options.tiny else FULL
    device = find_device()
    if device.type == "cpu" and not options.tiny:
        print("expected a CUDA device, got none; --tiny tries the script on a CPU", file=sys.stderr)
        return 2
    if options.part:
        return _one(options.part, Bench(scale, device, options.seconds), options.file)
    return _all(options, scale, device)


def _one(part: str, bench: Bench, file: Path) -> int:
    """A part, in the process that was started for it."""

    def save(tables: dict[str, list[Row]], **more: Any) -> None:
        partial = file.with_suffix(".tmp")
        partial.write_text(json.dumps({"tables": tables, **more}), encoding="utf-8")
        partial.replace(file)

    bench.save = save
    outcome = take(part, bench)
    save(**outcome)
    return 0


def _all(options: argparse.Namespace, scale: Scale, device: Any) -> int:
    began = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    cores = os.cpu_count() or 1
    together = max(1, min(5, cores // 3))

    def limits(part: str) -> float:
        left: float = began + 60 * options.minutes - time.perf_counter()
        return min(PARTS[part].seconds * (PATIENCE if options.tiny else 1), left)

    def run(part: str, limit: float) -> Row:
        if options.here:
            began = time.perf_counter()
            outcome = take(part, Bench(scale, device, limit))
            return outcome | {"seconds": round(time.perf_counter() - began, 1)}
        threads = None if PARTS[part].alone else max(1, cores // together)
        return in_a_process(part, limit, tiny=options.tiny, threads=threads)

    def save(outcomes: dict[str, Row]) -> None:
        facts = about(device) | {"seconds": round(time.perf_counter() - began, 1)}
        text = json.dumps(
            {**facts, "goals": goals(outcomes), "parts": outcomes}, indent=1, default=str
        )
        (options.out / "gpu.json").write_text(text + "\n", encoding="utf-8")
        (options.out / "gpu.md").write_text(page(facts, outcomes), encoding="utf-8")

    together = 1 if options.here else together
    outcomes = session(options.parts, limits, run, save, together=together)
    print(f"{options.out / 'gpu.md'}, {options.out / 'gpu.json'}")
    return 0 if all_passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
