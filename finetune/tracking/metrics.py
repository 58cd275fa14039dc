"""The names of what is logged, `SECTION/NAME`, and which of a run's values its summary keeps.

Sections: `train/` `val/` `lr/` `perf/` `frozen/` `data/`. All of them are functions of `step`.
"""

from __future__ import annotations

from finetune.metrics.semantics import Better, known, meaning

STEP = "step"
"""The one axis: optimizer steps made so far."""
KEPT_HIGHEST = "perf/peak_gib"
"""The measurement of which the highest is kept, in place of the mean."""
KEPT: dict[Better | None, str | None] = {"lower": "min", "higher": "max", None: None}
"""Which way a metric is better -> what is kept of it."""


def summary_of(name: str) -> str | None:
    """What Weights & Biases keeps of a value's history for the table of runs.

    Args:
        name: As it is logged, such as `val/accuracy`.

    Returns:
        `min` for losses and perplexities, `max` for scores and for memory, `mean` for speeds, and
        None, the last one, for what is neither better nor worse.
    """
    section = name.partition("/")[0]
    if section == "val" or (section == "train" and known(name)):
        return KEPT[meaning(name).better]
    if section == "perf":
        return "max" if name == KEPT_HIGHEST else "mean"
    return None
