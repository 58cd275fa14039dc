"""Compare two groups of runs, with error bars over seeds and over examples; it knows no task.

Over seeds: mean and standard deviation, the difference with a 95 % interval, t and rank tests. They
answer whether the order would hold if all was trained again. Over examples: paired bootstrap and
McNemar. They answer whether it would hold for these trained models on other examples of the kind.
The verdict is about the seeds, and names the examples where they disagree.

A name is imported from its module when it is first used: reading a group of runs does not wait for
numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.comparison.comparing import compare, corrected
    from finetune.comparison.differences import Comparison, Difference, as_json
    from finetune.comparison.examples import Bootstrap, McNemar, mcnemar, paired_bootstrap
    from finetune.comparison.groups import Answer, Group, Run
    from finetune.comparison.seeds import SeedTests, Spread, holm, seed_tests, seeds_needed, spread
    from finetune.comparison.tables import as_text, summary

__all__ = [
    "Answer",
    "Bootstrap",
    "Comparison",
    "Difference",
    "Group",
    "McNemar",
    "Run",
    "SeedTests",
    "Spread",
    "as_json",
    "as_text",
    "compare",
    "corrected",
    "holm",
    "mcnemar",
    "paired_bootstrap",
    "seed_tests",
    "seeds_needed",
    "spread",
    "summary",
]

__getattr__ = lazy_names(
    __name__, __all__, ("groups", "differences", "seeds", "tables", "comparing", "examples")
)
