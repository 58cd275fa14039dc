"""Encoders that are larger than a device: weights, gradients and moments in parts (FSDP2).

Torch's `fully_shard` (Zhao et al., 2023) under Lightning's ModelParallelStrategy: each process has
a part of every block, and all of a block only while it computes it. What is trained is a copy of
the module; the module itself is whole again when training has ended.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from finetune.machine.processes import is_first_process
from finetune.training.config import TrainerConfig
from finetune.training.loop.launching import WatchedProcesses, machines_of

M = TypeVar("M", bound=nn.Module)
FSDP = "fsdp"
"""Name of the strategy in the settings, as in Lightning and torch."""
MESH = "data_parallel"
"""Lightning's name of the processes among which the examples of a step are divided."""


def shards(config: TrainerConfig) -> bool:
    """Whether the settings divide the weights among processes; one process has them all."""
    return config.strategy == FSDP and config.devices * machines_of(config) > 1


def first_weights(config: TrainerConfig) -> AbstractContextManager[object]:
    """Where a module is made whose fresh weights the first process hands out to the others."""
    is_needed = is_first_process() or not shards(config)
    return nullcontext() if is_needed else torch.device("meta")


class ShardedProcesses(WatchedProcesses, ModelParallelStrategy):
    """Lightning's FSDP2."""

    def __init__(self, processes: int) -> None:
        """Divide the weights among all processes, and the examples as well."""
        super().__init__(data_parallel_size=processes, tensor_parallel_size=1)


def take_out(module: M) -> M:
    """Move a module's weights into a copy of it, which is to be sharded; they are not copied.

    Args:
        module: Left without weights, on the meta device, until `fill` gives it some.
    """
    shared = [*module.parameters(), *module.buffers()]
    # Of a Lightning module also its data, caches and settings: a copy would take time and memory.
    shared += [value for name, value in vars(module).items() if not name.startswith("_")]
    taken = copy.deepcopy(module, {id(each): each for each in shared})
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                empty = torch.empty_like(weight, device="meta")
                part._parameters[name] = nn.Parameter(empty, weight.requires_grad)
    return taken


def fill(module: nn.Module) -> None:
    """Give a module whose weights were taken out memory for others, on the CPU."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_meta:
                empty = torch.empty_like(weight, device="cpu")
                part._parameters[name] = nn.Parameter(empty, weight.requires_grad)


def divide(module: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Cut each tensor of a module into parts, one for each process of a mesh; see `shard`."""
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh)


def shard(module: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Divide a module's weights among processes: each has a part of every tensor.

    The first process's weights count; those of the others may lie on the meta device.

    Args:
        module: With embeddings and head, which are whole while a step is computed: a masked-LM
            head reads the embeddings' weights.
        blocks: Whole one at a time.
        mesh: The processes.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    weights = module.state_dict() if mesh.get_rank() == 0 else {}
    divide(module, blocks, mesh)
    if any(weight.is_meta for weight in module.parameters()):
        module.to_empty(device=mesh.device_type)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(module, weights, options=options)


def is_sharded(module: nn.Module) -> bool:
    """Whether a process has a part of its weights only."""
    return any(isinstance(weight, DTensor) for weight in module.parameters())


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: a part of a sharded one, all of another."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of a sharded one, all processes must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
