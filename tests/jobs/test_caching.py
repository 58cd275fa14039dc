"""What a run caches, as its plan shows it."""

from __future__ import annotations

import numpy as np

from finetune.jobs.caching import sizes
from finetune.training.prefix.cache import RowSet


def test_a_boundary_shows_the_size_of_what_is_read_there() -> None:
    train = RowSet("train", "a", np.array([1 << 20]))  # of 256 numbers of 4 bytes each: 1 GiB
    both = [(train, 1), (train, 2), (RowSet("validation", "b", np.array([1 << 19])), 2)]
    assert sizes(both, 1024, [4, 3, 2, 1], all_layers=False) == {3: "1.50 GiB", 2: "1.00 GiB"}
    every = sizes(both, 1024, [4, 3, 2, 1], all_layers=True)
    assert every == {4: "2.50 GiB", 3: "2.50 GiB", 2: "1.00 GiB"}
