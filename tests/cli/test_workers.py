"""Processes that make batches: killed, or without shared memory, they are one line and no hang."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from finetune.checkpoints.folder import load_checkpoint
from finetune.training.answering import UnitBatches
from finetune.training.config import LoaderConfig
from finetune.training.loop.data import MaskedBlocks, OrderedData

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def test_a_killed_worker_is_one_line_and_the_run_can_go_on(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, main_process = tmp_path / "run", os.getpid()
    words = world.pretrain(run, "--tokenizer", world.tokenizer)
    make, made = MaskedBlocks.__getitem__, []

    def ended(self: MaskedBlocks, indices: Any) -> Any:
        made.append(indices)  # of this worker
        if os.getpid() != main_process and len(made) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return make(self, indices)

    with monkeypatch.context() as patch:
        patch.setattr(MaskedBlocks, "__getitem__", ended)
        outcome = call(*words, "--num-workers", 2, "--checkpoint-every-steps", 1)
    assert outcome.status == 2
    assert outcome.complaint.startswith("finetune: a worker process that prepares batches was kill")
    assert outcome.err.count("finetune: ") == 1
    assert (run / "checkpoints" / "last" / "trainer.pt").exists()
    assert call(*words, "--resume", "--num-workers", 1).status == 0
    ours, theirs = (
        load_checkpoint(one / "checkpoints" / "last") for one in (run, world.pretrained)
    )
    for name, tensor in theirs.weights().items():
        assert torch.equal(ours.weights()[name], tensor), name


def test_a_killed_worker_raises_at_the_next_batch_and_nowhere_else(tmp_path: Path) -> None:
    class Dies(Dataset[Any]):
        def __getitem__(self, index: Any) -> Any:
            while index and not (tmp_path / "die").exists():
                time.sleep(0.01)
            if index:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"input_ids": torch.tensor([index])}

    before = signal.getsignal(signal.SIGCHLD)
    data = OrderedData(LoaderConfig(num_workers=1), seed=0)
    batches = iter(data.batch_loader(Dies(), [0, 1]))
    assert next(batches)["input_ids"].tolist() == [0]
    assert signal.getsignal(signal.SIGCHLD) is before
    (tmp_path / "die").touch()
    while multiprocessing.active_children():  # no line of this one may raise
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        next(batches)


def test_a_worker_that_is_killed_while_a_run_is_scored_is_one_line(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    main_process, make = os.getpid(), UnitBatches.__getitem__

    def ended(self: UnitBatches, indices: Any) -> Any:
        if os.getpid() != main_process:
            os.kill(os.getpid(), signal.SIGKILL)
        return make(self, indices)

    config = world.tuned / "config.yaml"
    plain = config.read_text()
    monkeypatch.setattr(UnitBatches, "__getitem__", ended)
    try:
        config.write_text(plain.replace("num_workers: 0", "num_workers: 1"))
        outcome = call("evaluate", world.tuned)
    finally:
        config.write_text(plain)
    assert outcome.status == 2
    assert outcome.complaint.startswith("finetune: a worker process that prepares batches was kill")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT, errno.ENOSYS])
def test_workers_without_shared_memory_are_refused_in_one_line(
    number: int, world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    words = world.glue(tmp_path / "run", "--num-workers", 2, "--quiet")
    monkeypatch.setattr(torch.multiprocessing, "Queue", lacking)
    refuses(
        rf"num_workers 2: the processes .* cannot be started \({os.strerror(number)}\); .*"
        "in /dev/shm: give it more, or set num_workers to 0",
        *words,
    )


def test_batches_of_workers_need_no_shared_memory(world: World) -> None:
    """A tensor would be lost where /dev/shm is full, and waited for."""
    from finetune.text import CorpusConfig, build_corpus
    from finetune.text.tokenizer.tokenizer import Tokenizer
    from finetune.training.config import LoaderConfig
    from finetune.training.loop.data import CorpusData

    tokenizer = Tokenizer.load(world.tokenizer)
    corpus = build_corpus(
        [str(world.corpus)], tokenizer, CorpusConfig(max_length=16), 1, world.root / "cache"
    )
    ahead, here = (
        CorpusData(corpus, tokenizer, None, LoaderConfig(num_workers=workers)).train_dataloader()
        for workers in (1, 0)
    )
    for ours, theirs in zip(ahead, here, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    handed_over = ahead.collate_fn(theirs)
    assert all(isinstance(array, np.ndarray) for array in handed_over.values())
