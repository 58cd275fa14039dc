"""The result of a comparison: the two sides, and the difference in each metric."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from finetune.comparison.examples import Bootstrap, McNemar
from finetune.comparison.seeds import SeedTests, Spread

Outcome = Literal["better", "worse", "undecided", "not enough seeds"]
"""The verdict on the first side."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of two groups, first less second."""

    metric: str
    """Its name in results.json."""
    a: Spread
    """The first group over its seeds."""
    b: Spread
    """The second group over its seeds."""
    seeds: SeedTests
    """Tests over seeds."""
    bootstrap: Bootstrap | None = None
    """Over examples, metrics averaged over the seeds of a group; None without answers."""
    mcnemar: tuple[McNemar, ...] = ()
    """Over examples, one test for each pair of runs; empty where the metric does not count right
    answers."""
    notes: tuple[str, ...] = ()
    """What could not be tested, and why."""
    comparisons: int = 1
    """How many differences were corrected together."""
    adjusted_p: float | None = None
    """`seeds.t_p` after Holm's correction."""
    adjusted_bootstrap_p: float | None = None
    """`bootstrap.p` after Holm's correction."""
    outcome: Outcome = "undecided"
    """The verdict in one word or phrase."""
    verdict: str = ""
    """The verdict in a sentence."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two groups of runs on one task."""

    task: str
    """Such as `glue/cola`."""
    split: str
    """The split whose metrics go without a prefix."""
    a: str
    """Name of the first group."""
    b: str
    """Name of the second group."""
    seeds_a: tuple[int, ...]
    """Seeds of the first group."""
    seeds_b: tuple[int, ...]
    """Seeds of the second group; () for a baseline, which has none."""
    differences: tuple[Difference, ...]
    """One for each metric."""
    notes: tuple[str, ...] = ()
    """Remarks on the runs, such as that one is degenerate."""

    @property
    def verdict(self) -> str:
        """One sentence for each metric."""
        return "\n".join(difference.verdict for difference in self.differences)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as JSON: every field by its name, and the verdict."""
    return dataclasses.asdict(comparison) | {"verdict": comparison.verdict}
