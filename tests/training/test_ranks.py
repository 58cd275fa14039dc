"""Processes that divide what they compute put it together again in the order of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.training import ranks as module
from finetune.training.ranks import ALONE, Ranks

BATCHES = [np.arange(3 * number, 3 * number + 3) for number in range(5)]


def of(size: int) -> list[Ranks]:
    return [Ranks(rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_each_batch_is_one_process_s(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [[batch.tolist() for batch in ranks.part(BATCHES)] for ranks in of(size)]
    assert all(parts)  # Lightning asks a process without a batch for nothing
    results = [[batch for batch in part if batch] for part in parts]
    monkeypatch.setattr(Ranks, "gathered", lambda self, value: results)
    assert of(size)[0].merged(results[0]) == [batch.tolist() for batch in BATCHES]


def test_one_process_asks_nobody() -> None:
    assert ALONE.part([]) == []
    assert ALONE.gathered(3) == [3]
    assert ALONE.of_first(3) == 3
    assert Ranks.of(None) == ALONE


def test_what_one_cannot_write_fails_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        ALONE.agreed(full)
    others = [None, OSError(28, "No space left on device")]
    monkeypatch.setattr(module.Ranks, "gathered", lambda self, value: others)
    with pytest.raises(OSError, match="No space left"):
        Ranks(0, 2).agreed(lambda: None)
