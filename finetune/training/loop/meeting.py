"""How the processes of a run meet through torch, and part."""

from __future__ import annotations

import os
import threading

import torch
from lightning_fabric.utilities import distributed as fabric
from torch._C._distributed_c10d import PrefixStore, TCPStore

from finetune.machine.processes import Place

PART_SECONDS = 3.0
"""How long a process that ends may take to part from those that still wait for it."""


def meet_again(place: Place, device: torch.device) -> None:
    """Let processes that torchrun has started again meet, apart from those before them.

    Torchrun's store lives on, and torch would look there for the addresses of processes that were
    killed; and `StopSignals` for what stopped those.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not place.by_torchrun or attempt == "0" or torch.distributed.is_initialized():
        return
    assert place.port is not None
    store = TCPStore(place.address, place.port, is_master=False, wait_for_workers=False)
    torch.distributed.init_process_group(
        fabric._get_default_process_group_backend_for_device(device),
        store=PrefixStore(f"restart_{attempt}", store),
        rank=place.rank,
        world_size=place.size,
    )


def part() -> None:
    """End the connections of torch to the other processes, if they are open.

    While Python ends, its threads would still let go of tensors, and may abort the process.
    What an error has interrupted may wait for another process for ever, and is left as it is.
    """
    if torch.distributed.is_initialized():
        parting = threading.Thread(target=torch.distributed.destroy_process_group, daemon=True)
        parting.start()
        parting.join(PART_SECONDS)
