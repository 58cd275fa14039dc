"""The frozen part of a run's encoder, computed once for all sets that the run reads."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from finetune.runs.folder import cache_folder, note
from finetune.runs.settings import FitRun
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.task_data import TaskData
from finetune.training.loop.trainer import MIXED
from finetune.training.prefix.cache import (
    PrefixCache,
    RowSet,
    choose_depths,
    features_key,
    open_cache,
    uses_of,
)
from finetune.training.prefix.states import arithmetic_key, weight_keys
from finetune.training.prefix.store import GIB
from finetune.training.ranks import ALONE, Ranks, pick_device
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Phase

Choice = list[tuple[RowSet, int]]
"""What is cached: a set and a depth, the most useful first."""


def row_sets(phases: Phases | None, data: TaskData) -> dict[str, RowSet]:
    """The sets that a plan reads at frozen boundaries, by split; none where nothing is frozen."""
    if phases is None or phases.config.frozen_dropout:
        return {}
    uses = uses_of((phase.groups, _epochs(phase, phases)) for phase in phases.rates.plan.phases)
    if not any(uses):  # the embeddings alone are not worth caching
        return {}
    sets = {}
    for split in (data.train_split, *data.task.validation_splits):
        training = split == data.train_split
        features = data.features(split, training=training)
        sets[split] = RowSet(
            f"{data.task.name} {split}",
            features_key(features),
            data.lengths(split, training=training),
            uses,
        )
    return sets


def _epochs(phase: Phase, phases: Phases) -> float:
    """Epochs of a phase; 1 where the clock decides how many the last one has."""
    end = phase.end or phases.pace.epochs or phase.start + 1
    return end - phase.start


def sizes(
    choice: Choice, bytes_per_token: int, boundaries: Iterable[int], *, all_layers: bool
) -> dict[int, str]:
    """The size of the cached states that are read at each boundary, for the plan's table.

    Args:
        choice: What is cached.
        bytes_per_token: Of the states at one depth.
        boundaries: Those of the plan.
        all_layers: Whether the states below a boundary are read with it.

    Returns:
        Boundary -> size, of those where something is read.
    """
    tokens = {
        at: sum(
            rows.tokens for rows, depth in choice if (depth < at if all_layers else depth + 1 == at)
        )
        for at in boundaries
    }
    return {at: f"{n * bytes_per_token / GIB:.2f} GiB" for at, n in tokens.items() if n}


def choose(run: FitRun, module: FineTuner, sets: dict[str, RowSet]) -> Choice:
    """What to cache within the budget; nothing where the cache is off."""
    if not run.caching.cache or not sets:
        return []
    width, all_layers = module.encoder.config.hidden_size, module.head.all_layers
    return choose_depths(list(sets.values()), width, run.caching, all_layers=all_layers)


def open_caches(
    run: FitRun,
    module: FineTuner,
    data: TaskData,
    sets: dict[str, RowSet],
    choice: Choice,
    ranks: Ranks = ALONE,
) -> dict[str, PrefixCache]:
    """Find or fill the hidden states of each set; the encoder is as it was given.

    Args:
        run: The settings.
        module: On any device; it is moved to the run's.
        data: The splits.
        sets: Split -> its sequences.
        choice: What to cache.
        ranks: Processes of this machine, which each fill a part.

    Returns:
        Split -> its cached states.
    """
    device = pick_device(run.trainer.accelerator)
    caches: dict[str, PrefixCache] = {}
    # Once for all sets: to hash the weights takes longer than to open a small set's states.
    keys = weight_keys(module.encoder, [0, *(depth for _, depth in choice)]) if choice else {}
    for split, rows in sets.items():
        depths = [depth for chosen, depth in choice if chosen is rows]
        if not depths:
            continue
        note(f"caching the frozen layers' hidden states: {rows.about}, depths {sorted(depths)}")
        module.to(device)
        with as_trained(run.trainer.precision, device):
            caches[split] = open_cache(
                module.encoder,
                replace(rows, encoder=run.encoder_from),
                depths,
                data.all_rows(split, training=split == data.train_split, ranks=ranks),
                folder=cache_folder(run.cache_dir) / "hidden",
                config=run.caching,
                arithmetic=arithmetic_key(device, run.trainer.precision),
                keys=keys,
                ranks=ranks,
            )
    return caches


def as_trained(name: str, device: torch.device) -> AbstractContextManager[object]:
    """As the trainer computes under this name."""
    return torch.autocast(device.type, dtype=MIXED[name]) if name in MIXED else nullcontext()
