"""The names of the files in a run folder, and of the folders of its seeds: `RUN/seed-1`, and so on.

The names are written here only. Checkpoints and tracking, which are layers below runs, take them
from here; the layers above use `runs.folder.RunFolder`.
"""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"
"""All settings of the run, defaults included."""
RESULTS = "results.json"
"""The results of one seed, or of all of them."""
RESULTS_BEFORE = "results.before.json"
"""Those of a finished run, while it is trained for more epochs."""
METRICS = "metrics.jsonl"
"""One line for each logged step."""
TABLE = "metrics.csv"
"""The same as a table."""
LOG = "log.txt"
"""What the run said to people."""
RATE_CURVE = "rate_curve.json"
"""The losses at increasing learning rates."""
CHECKPOINTS = "checkpoints"
"""Folder of `best`, the best weights, and `last`, all that resuming needs."""
PREDICTIONS = "predictions"
"""Folder with one file for each split."""
TEXTS = "texts"
"""Folder with the texts of the examples that a report shows, one file for each split."""
BASELINES = "baselines"
"""Folder of the answers of elementary baselines, one file for each and each split."""
SUBMISSION = "submission"
"""Folder of files in the benchmark's own format."""
DATA = "data"
"""Folder of the data that `finetune.fit` was given in memory, a file for each split."""
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
    """The folders of the seeds of a run, by number; none if the run has a single seed."""
    folders = (path for path in run.glob(ANY_SEED) if path.is_dir())
    return sorted(folders, key=lambda folder: (len(folder.name), folder.name))  # 2 before 10
