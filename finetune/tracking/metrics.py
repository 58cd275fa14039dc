"""Which value of a metric Weights & Biases shows in its table of runs: lowest, highest or mean.

Metrics are logged as `SECTION/NAME` by step. Sections: `train/` `val/` `lr/` `perf/` `frozen/`
`data/`.
"""

from __future__ import annotations

from finetune.metrics.semantics import Better, known, meaning

STEP = "step"
"""The x axis of all metrics: optimizer steps made so far."""
PEAK_MEMORY = "perf/peak_gib"
"""The measurement of which the highest value counts; of others the mean does."""
SUMMARIES: dict[Better | None, str | None] = {"lower": "min", "higher": "max", None: None}
"""Which way a metric is better -> its value in the summary."""


def summary_of(name: str) -> str | None:
    """Which value of a metric's history Weights & Biases shows in the table of runs.

    Args:
        name: As it is logged, such as `val/accuracy`.

    Returns:
        `min` for losses and perplexities, `max` for scores and for memory, `mean` for speeds;
        None, which stands for the last value, where neither direction is better.
    """
    section = name.partition("/")[0]
    if section == "val" or (section == "train" and known(name)):
        return SUMMARIES[meaning(name).better]
    if section == "perf":
        return "max" if name == PEAK_MEMORY else "mean"
    return None
