"""Rows of batches follow streams of text, and remember what they read last."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune import jobs
from finetune.encoder.memory import Memory
from finetune.errors import ConfigError
from finetune.runs.settings import PretrainRun
from finetune.text.corpus.corpus import CorpusConfig
from finetune.training.config import LoaderConfig
from finetune.training.loop.accumulation import FILLER
from finetune.training.loop.streams import StreamMemory, divided, stream_batches
from finetune.training.ranks import Ranks
from tests.made.nets import tiny_config
from tests.training.loop.test_resume import losses


@pytest.mark.parametrize(("count", "rows"), [(12, 4), (13, 4), (15, 4), (3, 4)])
def test_each_row_reads_consecutive_blocks_and_none_is_left_out(count: int, rows: int) -> None:
    batches = stream_batches(count, rows)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert stream_batches(0, rows) == []
    for before, after in zip(batches, batches[1:], strict=False):
        assert len(after) <= len(before)
        assert (after == before[: len(after)] + 1).all()


def test_a_row_is_in_the_same_part_of_a_short_batch() -> None:
    assert [part.tolist() for part in divided(np.arange(7), 7, 3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [part.tolist() for part in divided(np.arange(4), 7, 3)] == [[0, 1, 2], [3], []]


def remembering(rank: int, ranks: int, micro: int, value: Callable[[Any], Any]) -> StreamMemory:
    """As it is in one of several processes after a step, which `value` gathers from."""
    streams = StreamMemory(2)
    streams._ranks = type("Some", (Ranks,), {"gathered": lambda self, own: value(own)})(rank, ranks)
    streams._micro_batches = micro
    return streams


def test_a_state_goes_on_with_another_number_of_processes_and_micro_batches() -> None:
    states = torch.arange(6.0).view(6, 1, 1)  # of six rows
    own: list[Any] = []
    for rank in range(2):
        streams = remembering(rank, 2, 1, lambda one: own.append(one) or [one])
        memory = streams.of({}, rank)
        assert isinstance(memory, Memory)
        memory.extend(0, states[rank * 3 : rank * 3 + 3])
        streams.state_dict()
    state = remembering(0, 2, 1, lambda one: own).state_dict()
    assert torch.equal(state["states"][0], states)
    alone = remembering(0, 1, 3, lambda one: [one])
    alone.load_state_dict(state)
    alone._take_up(torch.device("cpu"))
    for part in range(3):
        memory = alone.of({}, 3 + part)  # of the next step
        assert memory is not None
        assert memory.states[0].flatten().tolist() == [2 * part, 2 * part + 1]
    assert alone.of({FILLER: torch.ones(1)}, 0) is None


def test_each_part_of_a_batch_has_a_memory_that_no_other_process_has() -> None:
    made = {}
    for rank in range(2):
        streams = remembering(rank, 2, 2, lambda one: [one])
        for batch in range(4):  # two steps of two micro-batches
            memory = streams.of({}, batch)
            assert memory is not None
            memory.extend(0, torch.full((1, 1, 1), float(batch)))
        made[rank] = {
            part: one.states[0].flatten().tolist() for part, one in streams._parts.items()
        }
    assert made == {0: {0: [0, 2], 2: [1, 3]}, 1: {1: [0, 2], 3: [1, 3]}}


REMEMBERING: dict[str, Any] = {"causal": True, "position": "relative", "memory": 5}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def with_memory(make: Callable[..., PretrainRun], out: str, **more: Any) -> PretrainRun:
    return make(out, encoder=tiny_config(**REMEMBERING, **NO_DROPOUT), **more)


def test_micro_batches_change_nothing_but_rounding(pretraining: Callable[..., PretrainRun]) -> None:
    loaders = {parts: LoaderConfig(batch_size=16, micro_batches=parts) for parts in (1, 2)}
    runs = [with_memory(pretraining, f"of-{n}", loader=loader) for n, loader in loaders.items()]
    for run in runs:
        jobs.pretrain(run)
    whole, parted = (losses(run.out) for run in runs)
    for ours, theirs in zip(whole, parted, strict=True):
        numbers = [[one for one in row if one is not None] for row in (ours, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": CorpusConfig(max_length=16, documents="separate")}, "expected documents joined"),
        ({"corpus": "twice"}, "memory: expected one stream of text, got corpora with weights"),
    ],
)
def test_where_no_text_comes_before_a_block_a_memory_is_refused(
    pretraining: Callable[..., PretrainRun], change: dict[str, Any], message: str
) -> None:
    run = with_memory(pretraining, "run")
    if "corpus" in change:
        second = Path(run.out).with_name("second.txt")
        shutil.copy(run.corpus[0], second)
        change = {"corpus": [f"{run.corpus[0]}:2", f"{second}:1"]}
    with pytest.raises(ConfigError, match=message):
        jobs.pretrain(dataclasses.replace(run, **change))
    assert not Path(run.out).exists()
