"""What a run leaves in its folder, by name, and where its seeds lie: `RUN/seed-1` and so on.

Nothing else in the library writes these names down. Checkpoints and tracking, which lie below runs,
take them from here; all that lies above asks `run_folder.RunFolder`.
"""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"
"""All settings of the run, defaults included."""
RESULTS = "results.json"
"""What came out: of one seed, or of all of them."""
METRICS = "metrics.jsonl"
"""One line for each logged step."""
TABLE = "metrics.csv"
"""The same as a table."""
CHECKPOINTS = "checkpoints"
"""Folder of `best`, the weights to keep, and `last`, all that resuming needs."""
PREDICTIONS = "predictions"
"""Folder with one file for each split."""
SUBMISSION = "submission"
"""Folder of files in the benchmark's own format."""
TOKENIZER = "tokenizer"
"""The tokenizer that was trained with the encoder."""
MARKS = (CONFIG, RESULTS, METRICS)
"""A run folder has one of these files at least."""
ANY_SEED = "seed-*"
"""Pattern of the folders of seeds."""


def seed_folder(run: Path, seed: int) -> Path:
    """The folder of one of several seeds."""
    return run / ANY_SEED.replace("*", str(seed))


def seed_folders(run: Path) -> list[Path]:
    """The folders of the seeds of a run, by number; none where it holds one seed."""
    found = (place for place in run.glob(ANY_SEED) if place.is_dir())
    return sorted(found, key=lambda place: (len(place.name), place.name))
