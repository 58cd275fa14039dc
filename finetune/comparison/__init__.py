"""Compare two groups of runs, with error bars over seeds and over examples; it knows no task.

Over seeds: mean and standard deviation, the difference with a 95 % interval, t and rank tests. They
answer whether the order would hold if all was trained again. Over examples: paired bootstrap and
McNemar. They answer whether it would hold for these trained models on other examples of the kind.
The verdict is about the seeds, and names the examples where they disagree.

A name is imported from its module when it is first used: reading a group of runs does not wait for
numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.comparison.comparing import compare, corrected
    from finetune.comparison.differences import Comparison, Difference, as_json
    from finetune.comparison.examples import Bootstrap, McNemar, mcnemar, paired_bootstrap
    from finetune.comparison.groups import Answer, Group, Run
    from finetune.comparison.seeds import SeedTests, Spread, holm, seed_tests, seeds_needed, spread
    from finetune.comparison.tables import as_text, summary

_HOMES = {
    "Answer": "groups",
    "Bootstrap": "examples",
    "Comparison": "differences",
    "Difference": "differences",
    "Group": "groups",
    "McNemar": "examples",
    "Run": "groups",
    "SeedTests": "seeds",
    "Spread": "seeds",
    "as_json": "differences",
    "as_text": "tables",
    "compare": "comparing",
    "corrected": "comparing",
    "holm": "seeds",
    "mcnemar": "examples",
    "paired_bootstrap": "examples",
    "seed_tests": "seeds",
    "seeds_needed": "seeds",
    "spread": "seeds",
    "summary": "tables",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'finetune.comparison' has no attribute {name!r}")
    return getattr(importlib.import_module(f"finetune.comparison.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
