"""Weights in parts: the same numbers as whole ones, and encoders that no device could hold."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lightning_fabric.plugins.environments.lightning import find_free_network_port
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.cost import parameters
from finetune.errors import CheckpointError
from finetune.files import sharded
from finetune.files.checksums import check_files, file_digest, write_checksums
from finetune.files.sharded import (
    read_optimizer,
    read_weights,
    spread_optimizer,
    whole_weights,
    write_parts,
)
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.sharding import divide, fill, local, shard, take_out, whole
from finetune.training.optimizer import OptimizerConfig, make_optimizer

ROOT = Path(__file__).parent.parent.parent.parent

SIZES = {
    "bert-large": (
        8,
        EncoderConfig(30522, 1024, 24, num_attention_heads=16, intermediate_size=4096),
    ),
    "1.3b": (
        64,
        EncoderConfig(
            50368, 2048, 24, num_attention_heads=16, intermediate_size=8192, position="rotary"
        ),
    ),
}
TINY = EncoderConfig(
    vocab_size=61,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=36,
    gradient_checkpointing=True,
)
SEED, STEPS = 5, 4


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[int]:
    """The fourth of several processes that are not there."""
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


@pytest.mark.parametrize(("processes", "config"), SIZES.values(), ids=SIZES, indirect=["processes"])
def test_a_large_encoder_is_divided_before_it_takes_memory(
    processes: int, config: EncoderConfig
) -> None:
    with torch.device("meta"):
        module = Pretrainer(Encoder(config))
    divide(module, module.encoder.blocks, init_device_mesh("cpu", (processes,)))
    all_weights = parameters(config, language_model=True)
    assert sum(weight.numel() for weight in module.parameters()) == all_weights
    here = sum(local(weight).numel() for weight in module.parameters())
    assert here == pytest.approx(all_weights / processes, rel=0.01)


def test_what_was_taken_out_is_the_module_and_what_is_left_has_no_weights() -> None:
    module = Pretrainer(Encoder(TINY))
    weights = dict(module.named_parameters())
    taken = take_out(module)
    assert all(weight is weights[name] for name, weight in taken.named_parameters())
    assert taken.head.weight is taken.encoder.embeddings.word_embeddings.weight
    assert all(weight.is_meta for weight in module.parameters())
    fill(module)
    module.load_state_dict(taken.state_dict())
    assert module.head.weight is module.encoder.embeddings.word_embeddings.weight
    assert torch.equal(module.head.weight, taken.head.weight)


def test_parts_train_as_the_whole_and_are_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)  # where the processes find this module
    mp.spawn(_compare, args=(find_free_network_port(), tmp_path), nprocs=2)
    assert len(read_weights(tmp_path / "named")) == len(Pretrainer(Encoder(TINY)).state_dict())
    part = tmp_path / "named" / "sharded" / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="__1_0.distcp: expected the file as it was saved"):
        read_weights(tmp_path / "named")


def _compare(rank: int, port: int, folder: Path) -> None:
    """One of the two processes: a whole module beside the sharded one, on the same batches."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=200))
    mesh = init_device_mesh("cpu", (2,))
    for kind, dtype in (("adamw", None), ("muon", None), ("adamw", torch.bfloat16)):
        config = OptimizerConfig(learning_rate=1e-2, optimizer=kind)  # type: ignore[arg-type]
        torch.manual_seed(SEED)
        module = Pretrainer(Encoder(TINY))
        parts = _in_parts(rank, mesh)
        pairs = [(each, make_optimizer(each.layers(), config)) for each in (module, parts)]
        for step in range(STEPS):
            losses = [_train(*pair, step, dtype) for pair in pairs]
            # Muon rounds to bf16 within, where a last bit of a gradient may become a larger one.
            nearly = 1e-3 if dtype else 1e-6 if kind == "adamw" else 1e-5
            assert losses[0] == pytest.approx(losses[1], rel=nearly), (kind, dtype, step)
        for (name, weight), part in zip(module.named_parameters(), parts.parameters(), strict=True):
            difference = float((weight - whole(part)).detach().abs().max())
            assert difference < (1e-5 if kind == "adamw" and not dtype else 2e-2), (kind, name)
    _write_and_read(rank, folder / "checkpoint", pairs)
    dist.destroy_process_group()


def _in_parts(rank: int, mesh: Any) -> Pretrainer:
    torch.manual_seed(SEED)
    with torch.device("cpu" if rank == 0 else "meta"):
        parts = take_out(Pretrainer(Encoder(TINY)))
    shard(parts, parts.encoder.blocks, mesh)
    return parts


def _train(
    module: Pretrainer, optimizer: torch.optim.Optimizer, step: int, dtype: torch.dtype | None
) -> float:
    numbers = torch.Generator().manual_seed(step)
    positions = torch.arange(0, 32, 3)
    batch = {
        "input_ids": torch.randint(0, 61, (4, 8), generator=numbers),
        "positions": positions,
        "labels": torch.randint(0, 61, positions.shape, generator=numbers),
    }
    torch.manual_seed(step)  # of dropout
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = module.training_step(batch, 0)["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    whole(nn.utils.clip_grad_norm_(module.parameters(), 0.1))
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def _late_digest(file: Path) -> str:
    time.sleep(1 if file.name == ".metadata" else 0)
    return file_digest(file)


def _write_and_read(rank: int, folder: Path, pairs: list[Any]) -> None:
    (module, optimizer), (parts, of_parts) = pairs
    if rank == 0:
        folder.mkdir()
    dist.barrier()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # it is late for what the first process has written
            patch.setattr(sharded, "file_digest", _late_digest)
        digests = write_parts(folder if rank == 0 else None, parts, of_parts)
    if rank == 0:  # which gives the folder its name at once
        folder = folder.rename(folder.with_name("named"))
        write_checksums(folder, digests)
        check_files(folder, digests)
    dist.barrier()
    folder = folder.with_name("named")
    weights = whole_weights(parts)
    if rank == 0:
        read = read_weights(folder)
        assert all(torch.equal(read[name], weight) for name, weight in weights.items())
    fresh = make_optimizer(module.layers(), OptimizerConfig(learning_rate=1.0))
    read_optimizer(folder, module, fresh)  # of parts, for a whole module
    moments = [whole(state["exp_avg"]) for state in of_parts.state.values()]
    for state, moment in zip(fresh.state.values(), moments, strict=True):
        torch.testing.assert_close(state["exp_avg"], moment, rtol=0, atol=0)
    again = make_optimizer(parts.layers(), OptimizerConfig(learning_rate=1.0))
    spread_optimizer(fresh.state_dict(), parts, again)  # and of a whole module, for parts
    for state, moment in zip(again.state.values(), moments, strict=True):
        torch.testing.assert_close(whole(state["exp_avg"]), moment, rtol=0, atol=0)
    assert [group["lr"] for group in again.param_groups] == [
        group["lr"] for group in of_parts.param_groups
    ]
