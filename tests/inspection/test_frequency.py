from __future__ import annotations

import numpy as np
import pytest

from finetune.inspection.frequency import binned, frequency_table

COUNTS = np.array([0, 3, 9, 10, 250, 0])  # how often tokens 0 to 5 were seen
LABELS = np.array([1, 2, 3, 4, 4, 0])
LOSSES = np.array([5.0, 3.0, 2.0, 1.0, 0.5, 9.0])
RIGHT = np.array([False, True, True, True, False, False])


def test_losses_are_averaged_by_powers_of_ten_of_the_count() -> None:
    found = binned(COUNTS, LABELS, LOSSES, RIGHT)
    bounds = [(one["least"], one["most"], one["kinds"], one["tokens"]) for one in found["bins"]]
    assert bounds == [(0, 0, 2, 1), (1, 9, 2, 2), (10, 99, 1, 1), (100, 999, 1, 2)]
    assert [one["loss"] for one in found["bins"]] == [9.0, 4.0, 2.0, 0.75]
    assert [one["accuracy"] for one in found["bins"]] == [0.0, 0.5, 1.0, 0.5]
    assert found["loss"] == pytest.approx(LOSSES.mean())
    assert sum(one["tokens"] for one in found["bins"]) == found["tokens"] == 6


def test_unigram_loss_is_that_of_the_counts() -> None:
    found = binned(COUNTS, LABELS, LOSSES, RIGHT)
    total = COUNTS.sum() + len(COUNTS)
    assert found["bins"][0]["unigram_loss"] == pytest.approx(np.log(total))
    assert found["bins"][3]["unigram_loss"] == pytest.approx(-np.log(251 / total))


def test_bin_without_masked_tokens_is_shown_empty() -> None:
    found = binned(COUNTS, LABELS[:2], LOSSES[:2], RIGHT[:2])
    assert found["bins"][3]["loss"] is None
    lines = frequency_table(found).splitlines()
    assert lines[2].split() == ["never", "2", "0"]
    assert lines[3].split()[:5] == ["1", "to", "9", "2", "2"]
    assert lines[-1].split()[:2] == ["all", "2"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("highest", [1, 9, 10, 99, 1000, 12345])
def test_every_count_is_in_one_bin(highest: int) -> None:
    counts = np.unique(np.r_[0, np.geomspace(1, highest, 20).astype(int), highest])
    labels = np.arange(len(counts))
    found = binned(counts, labels, np.ones(len(counts)), np.ones(len(counts), bool))
    assert sum(one["kinds"] for one in found["bins"]) == len(counts)
    assert found["bins"][-1]["kinds"] > 0
