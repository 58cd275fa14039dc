"""Checkpoints of which each process writes its part (torch.distributed.checkpoint).

RUN/checkpoints/last of a run under FSDP has a folder `sharded` in place of `model.safetensors`: a
file for each process, with its part of the weights and of the optimizer's state. Any number of
processes reads it, and one process can read the weights alone. `model.safetensors` is added when
the run ends, and where only weights are saved (`best`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.files.checksums import check_files, file_digest, read_checksums

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.checkpoint.planner import LoadPlanner
    from torch.optim import Optimizer

PARTS = "sharded"
"""Folder inside a checkpoint."""
MODEL, OPTIMIZER = "model", "optimizer"


def has_parts(folder: Path) -> bool:
    """Whether a checkpoint was written in parts."""
    return (folder / PARTS).is_dir()


def parts_of(digests: Mapping[str, str]) -> list[str]:
    """The files of a checkpoint's parts, by the names in checksums.json."""
    return [name for name in digests if name.startswith(f"{PARTS}/")]


def write_parts(folder: Path | None, module: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Write this process's part of a checkpoint; all processes must do so.

    Args:
        folder: Where the checkpoint is being made; what the first process says counts.
        module: Sharded among the processes.
        optimizer: Over its parameters.

    Returns:
        File -> digest, of all processes, for checksums.json.

    Raises:
        OSError: A process could not write its part; in all of them.
    """
    import torch.distributed as dist
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
    )
    from torch.distributed.checkpoint.state_dict_saver import save

    folders = [folder]
    dist.broadcast_object_list(folders)
    assert folders[0] is not None
    place = folders[0] / PARTS
    state = {
        MODEL: get_model_state_dict(module),
        OPTIMIZER: get_optimizer_state_dict(module, optimizer),
    }
    try:
        save(state, checkpoint_id=place)
    except CheckpointException as error:  # no Exception, and its message is a traceback
        raise next(iter(error.failures.values()))[0] from error
    files = [*place.glob(f"__{dist.get_rank()}_*")]
    files += [place / ".metadata"] if dist.get_rank() == 0 else []
    own = {file: file_digest(file) for file in files}
    digests: list[dict[Path, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(digests, own)
    # From here on the first process may give the folder its name: no other one may look there.
    return {f"{PARTS}/{file.name}": digest for each in digests for file, digest in each.items()}


def read_optimizer(folder: Path, module: nn.Module, optimizer: Optimizer) -> None:
    """Put back the optimizer's state; each process reads what it needs.

    Args:
        folder: A checkpoint that was written in parts, by any number of processes.
        module: Sharded or whole.
        optimizer: Over its parameters.

    Raises:
        CheckpointError: A file is damaged or missing.
    """
    import torch.distributed as dist
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    digests = read_checksums(folder)
    check_files(folder, parts_of(digests)[rank::size], digests)
    state = {OPTIMIZER: get_optimizer_state_dict(module, optimizer)}
    # A tensor that never had a gradient has no moments in the file.
    planner = DefaultLoadPlanner(allow_partial_load=True)
    _load(state, folder, planner)
    set_optimizer_state_dict(module, optimizer, state[OPTIMIZER])


def spread_optimizer(state: Mapping[str, Any], module: nn.Module, optimizer: Optimizer) -> None:
    """Give an optimizer over a sharded module the state that was saved of a whole one.

    Args:
        state: A state dict of the same optimizer over a whole module.
        module: Sharded.
        optimizer: Over its parameters.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    names = {id(weight): name for name, weight in module.named_parameters()}
    order = [names[id(weight)] for group in optimizer.param_groups for weight in group["params"]]
    groups = [
        {**group, "params": [order[number] for number in group["params"]]}
        for group in state["param_groups"]
    ]
    named: dict[str, Any] = {
        "state": {order[number]: moments for number, moments in state["state"].items()},
        "param_groups": groups,
    }
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(module, optimizer, named, options=options)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a checkpoint that was written in parts, by name; one process reads them.

    Raises:
        CheckpointError: A file is damaged or missing.
    """
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    digests = read_checksums(folder)
    check_files(folder, parts_of(digests), digests)
    described = FileSystemReader(folder / PARTS).read_metadata().state_dict_metadata
    weights = {
        name.removeprefix(f"{MODEL}."): torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in described.items()
        if name.startswith(f"{MODEL}.") and isinstance(each, TensorStorageMetadata)
    }
    _load({MODEL: weights}, folder, alone=True)
    return weights


def _load(
    state: dict[str, Any], folder: Path, planner: LoadPlanner | None = None, *, alone: bool = False
) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*load in a single process.*")  # as it is meant
        load(state, checkpoint_id=folder / PARTS, planner=planner, no_dist=alone)


def whole_weights(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a sharded module, on the CPU of the first process; all must ask."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(module, options=options)
    return weights
