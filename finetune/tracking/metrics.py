"""The names of what is logged, `SECTION/NAME`, and which of a run's values its summary keeps.

Sections: `train/` `val/` `lr/` `perf/` `frozen/` `data/`. All of them are functions of `step`.
"""

from __future__ import annotations

STEP = "step"
"""The one axis: optimizer steps made so far."""
LOWER_IS_BETTER = ("loss", "perplexity")
KEPT_HIGHEST = ("train/masked_accuracy", "train/next_token_accuracy", "perf/peak_gib")
"""Values other than scores of which the highest is kept."""


def summary_of(name: str) -> str | None:
    """What Weights & Biases keeps of a value's history for the table of runs.

    Args:
        name: As it is logged, such as `val/accuracy`.

    Returns:
        `min` for losses and perplexities, `max` for scores and for memory, `mean` for speeds, and
        None, the last one, for what is neither better nor worse.
    """
    section, _, rest = name.partition("/")
    last = rest.rpartition("/")[2]
    if section in ("train", "val") and last in LOWER_IS_BETTER:
        return "min"
    if section == "val" or name in KEPT_HIGHEST:
        return "max"
    return "mean" if section == "perf" else None
