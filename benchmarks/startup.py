"""How long it takes to start: help, a model in memory, a first answer. Rows of `bench.py`.

Each turn is a process from its start to its end. The peer has the same weights, as `finetune
export` writes them for `transformers`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from finetuning_made import write_made_encoder, write_made_task
from turns import LIMIT, OURS, Contest, Settings, Turn

FINETUNE = [sys.executable, "-m", "finetune"]
LOAD = "import sys, transformers; model = transformers.pipeline('text-classification', sys.argv[1])"
TEXT = "w1 w2 w3 w4"


def contests(encoder: Path | None, rounds: int) -> list[Contest]:
    """Three starts; the limit is Python's own, and where a model is read, with torch imported."""
    peers = {name: "startup:turn" for name in (OURS, "transformers")}
    settings: Settings = {"encoder": encoder and str(encoder)}
    starts = {"help": "--help", "load": "load", "predict": "predict, one text"}
    return [
        Contest(
            f"start-up, {title}",
            {**peers, LIMIT: "startup:python"},
            rounds=rounds,
            settings={**settings, "start": start},
        )
        for start, title in starts.items()
    ]


def python(settings: Settings) -> Turn:
    """Make a turn of a Python that does nothing, or imports torch alone."""
    does = "pass" if settings["start"] == "help" else "import torch"
    return lambda: _seconds([sys.executable, "-c", does])


def turn(settings: Settings) -> Turn:
    """Make a turn of a contestant: seconds from the start of a process to its end."""
    is_ours = settings["contestant"] == OURS
    if settings["start"] == "help":
        script = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
        words = [*(FINETUNE if is_ours else [sys.executable, "-c", script]), "--help"]
        return lambda: _seconds(words)
    run, exported = run_and_export(settings)
    text = Path(settings["folder"]) / "text.txt"
    text.write_text(TEXT + "\n", encoding="utf-8")
    commands = {
        ("load", True): [sys.executable, "-c", f"import finetune; finetune.load({str(run)!r})"],
        ("load", False): [sys.executable, "-c", LOAD, str(exported)],
        ("predict", True): [*FINETUNE, "predict", str(run), "--input", str(text)],
        ("predict", False): [sys.executable, "-c", f"{LOAD}; model([{TEXT!r}])", str(exported)],
    }
    return lambda: _seconds(commands[settings["start"], is_ours])


def run_and_export(settings: Settings) -> tuple[Path, Path]:
    """A run of one step, and its export."""
    from tasks.__main__ import main as command

    folder = Path(settings["folder"])
    encoder = settings["encoder"] or write_made_encoder(folder / "encoder")[0]
    run, exported = folder / "run", folder / "exported"
    words = ["glue", "sst2", "--encoder", str(encoder), "--out", str(run), "--max-steps", "1"]
    words += ["--data", str(write_made_task(folder / "data", 64)), "--no-wandb", "--no-progress"]
    words += ["--cache-dir", str(folder / "cache")]
    for each in (words, ["export", str(run), "--format", "hf", "--out", str(exported)]):
        if command(each):
            raise SystemExit(f"finetune {' '.join(each)} failed")
    return run, exported


def _seconds(words: list[str]) -> float:
    # With compiled files beside the sources, as after a first start, even where they are forbidden.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    start = time.perf_counter()
    subprocess.run(words, check=True, env=environment)
    return time.perf_counter() - start
