"""The frozen part of an encoder, computed once: hidden states at its boundary, on disk.

Cached and uncached runs give the same numbers: `states.py` says when and why.

Rows are numbers of sequences: unit u of a task has the rows u R … u R + R - 1.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from finetune.encoder import Encoder
from finetune.text.features.pairs import Features
from finetune.training.config import CacheConfig
from finetune.training.prefix.states import (
    frozen_hidden,
    frozen_layers,
    frozen_states,
    weight_keys,
)
from finetune.training.prefix.store import (
    GIB,
    Entry,
    Note,
    Rows,
    States,
    Writer,
    digest,
    filling,
    find_states,
    free_space,
    token_bytes,
)
from finetune.training.ranks import ALONE, Ranks


@dataclass(frozen=True)
class RowSet:
    """Sequences whose hidden states are wanted, and how often."""

    about: str
    """In words: task and split."""
    texts: str
    """Key of the token ids (`features_key`)."""
    lengths: Rows
    """Tokens of each sequence (N,)."""
    uses: Mapping[int, float] = field(default_factory=dict)
    """Depth -> how many times the whole set is read there (`uses_of`)."""
    encoder: str = ""
    """What the encoder is called, for people."""

    @property
    def tokens(self) -> int:
        """Real tokens of all sequences."""
        return int(self.lengths.sum())


def features_key(features: Sequence[Features]) -> str:
    """Hash all that an encoder sees of some sequences: their ids and segments.

    It stands for tokenizer, texts and longest length at once: where the ids are equal, so are the
    hidden states.
    """
    state = hashlib.blake2b(digest_size=16)
    for feature in features:
        ids = np.asarray(feature.input_ids, dtype=np.int32)
        state.update(len(ids).to_bytes(4, "little"))  # so that no two cuts of the ids are alike
        state.update(ids.tobytes())
        state.update(np.asarray(feature.token_type_ids, dtype=np.uint8).tobytes())
    return state.hexdigest()


def uses_of(phases: Iterable[tuple[range, float]]) -> dict[int, float]:
    """Say how long each boundary of a plan has only untrained weights below it.

    What was trained in an earlier phase (chain-thaw trains a block and freezes it again) is no
    longer what the cache was filled with, so such a phase is left out.

    Args:
        phases: Trainable groups (0 = embeddings … L + 1 = head) and epochs of each phase.

    Returns:
        Depth of the frozen part -> epochs; a phase that trains the embeddings has none.
    """
    uses: dict[int, float] = {}
    lowest = None  # of all groups that were trained so far
    for groups, epochs in phases:
        boundary = groups.start
        if boundary >= 1 and (lowest is None or boundary <= lowest):
            uses[boundary - 1] = uses.get(boundary - 1, 0.0) + epochs
        lowest = boundary if lowest is None else min(lowest, boundary)
    return uses


def choose_depths(
    sets: Sequence[RowSet], width: int, config: CacheConfig, *, all_layers: bool = False
) -> list[tuple[RowSet, int]]:
    """Choose what to cache within the budget: again and again what saves most work a byte.

    A boundary that is not cached is computed from the nearest cached one below. The embeddings
    (depth 0) never are: looking them up costs as much as reading them back.

    Args:
        sets: Training and validation sets with their uses.
        width: D of the encoder.
        config: Budget and precision.
        all_layers: Whether the head reads the states at all boundaries up to the frozen one.

    Returns:
        Sets and depths, the most useful first.
    """
    left = int(config.cache_gib * GIB)  # rounded down: never a byte above the budget
    chosen: list[tuple[RowSet, int]] = []
    while True:
        fitting = [rows for rows in sets if _bytes(rows, width, config) <= left]
        savings = [
            (_saving(rows, depth, chosen, all_layers=all_layers), rows, depth)
            for rows in fitting
            for depth in (range(1, max(rows.uses) + 1) if all_layers else sorted(rows.uses))
        ]
        # By the saving alone: of equal ones the first, so the set named first and its lowest depth.
        saving, rows, depth = max(savings, key=lambda choice: choice[0], default=(0.0, None, 0))
        if rows is None or saving <= 0:
            return chosen
        chosen.append((rows, depth))
        left -= _bytes(rows, width, config)


def _bytes(rows: RowSet, width: int, config: CacheConfig) -> int:
    return rows.tokens * token_bytes(width, config.cache_precision)


def _saving(
    rows: RowSet, depth: int, chosen: Sequence[tuple[RowSet, int]], *, all_layers: bool
) -> float:
    """Blocks that one more cached depth saves, a token and so a byte."""
    depths = [other for same, other in chosen if same is rows]
    if all_layers:  # the boundary below is there in any case: one block, whatever else is cached
        uses = sum(uses for boundary, uses in rows.uses.items() if boundary >= depth)
        return 0.0 if depth in depths else uses
    return sum(
        uses * max(0, depth - max((other for other in depths if other <= boundary), default=0))
        for boundary, uses in rows.uses.items()
        if boundary >= depth  # states above a boundary are of no use to it
    )


class PrefixCache:
    """Hidden states of a set's sequences, read where they are cached and computed where not."""

    def __init__(self, states: Mapping[int, States] | None = None) -> None:
        """Take what is cached: depth -> states; nothing for a run without a cache."""
        self.states = dict(states or {})

    @property
    def depths(self) -> tuple[int, ...]:
        """The boundaries that are cached."""
        return tuple(sorted(self.states))

    def read(self, rows: Rows, length: int, depth: int) -> tuple[Tensor, int] | None:
        """What is cached nearest below a boundary, or None.

        Args:
            rows: Numbers of the sequences (B,).
            length: T of the batch.
            depth: The boundary.

        Returns:
            float32 (B, T, D) on the CPU, zeros where padded, and its depth.
        """
        below = max((cached for cached in self.states if cached <= depth), default=None)
        return None if below is None else (self.states[below].read(rows, length), below)

    def hidden(
        self, encoder: Encoder, batch: Mapping[str, Tensor], rows: Rows, depth: int
    ) -> Tensor:
        """Hidden states at a boundary, for `Encoder.suffix`.

        Args:
            encoder: Its blocks up to there are as they were when the cache was filled.
            batch: The sequences' batch, on the encoder's device.
            rows: Their numbers (B,).
            depth: The boundary.

        Returns:
            float32 (B, T, D) on the batch's device; no gradient flows back.
        """
        cached = self.read(rows, batch["input_ids"].shape[1], depth)
        return frozen_hidden(encoder, batch, depth, cached)

    def layers(
        self, encoder: Encoder, batch: Mapping[str, Tensor], rows: Rows, depth: int
    ) -> list[Tensor]:
        """Hidden states at the boundaries 0 … `depth`; arguments as of `hidden`."""
        length = batch["input_ids"].shape[1]
        cached = {
            at: states.read(rows, length) for at, states in self.states.items() if at <= depth
        }
        return frozen_layers(encoder, batch, depth, cached)

    def close(self) -> None:
        """Let other runs remove what is cached."""
        for states in self.states.values():
            states.close()


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def open_cache(
    encoder: Encoder,
    rows: RowSet,
    depths: Sequence[int],
    batches: Iterable[tuple[Rows, Mapping[str, Tensor]]],
    *,
    folder: Path,
    config: CacheConfig,
    arithmetic: str,
    keys: Mapping[int, str] | None = None,
    note: Note = _warn,
    ranks: Ranks = ALONE,
) -> PrefixCache:
    """Find the hidden states of a set, or fill them in one forward pass.

    Any number of runs may ask at once: one fills, the others wait for it and read. The processes
    of a run fill together, each its part.

    Args:
        encoder: Frozen up to the highest depth at least.
        rows: The sequences.
        depths: Boundaries to cache, the most useful first (`choose_depths`).
        batches: Numbers (B,) and batch, each sequence once (of several processes, this one's part);
            used only if something is missing.
        folder: The cache.
        config: Budget and precision.
        arithmetic: Part of the key (`arithmetic_key`).
        keys: `weight_keys` of depth 0 and these depths; None: computed, which takes longer than to
            open what a few hundred sequences left.
        note: Called with one line on what was damaged, did not fit, or could not be written.
        ranks: Processes that share the folder, all of which ask for this set.

    Returns:
        What is cached; possibly fewer depths, or none.
    """
    if not config.cache or not depths:
        return PrefixCache()
    keys = weight_keys(encoder, [0, *depths]) if keys is None else keys
    entries = _entries(encoder, rows, depths, config, arithmetic, keys)
    opened: dict[int, States] = {}
    try:
        with ExitStack() as stack:

            def look() -> dict[int, Entry]:
                _open_entries(opened, folder, entries, rows, note)
                if len(opened) == len(entries):
                    return {}
                stack.enter_context(filling(folder, next(iter(entries.values())).group, note))
                # Again behind the lock: another run may have filled it while this one waited.
                _open_entries(opened, folder, entries, rows, note)
                absent = {d: entry for d, entry in entries.items() if d not in opened}
                return _fitting(folder, absent, entries, config, note)

            missing = ranks.agreed(lambda: look() if ranks.rank == 0 else {})[0]
            if missing:
                _fill(encoder, folder, missing, rows, batches, ranks)
            if missing or ranks.rank > 0:
                _open_entries(opened, folder, entries, rows, note)
    except OSError as error:
        if ranks.rank == 0:
            note(f"{folder}: hidden states cannot be cached ({error.strerror or error})")
    return PrefixCache(_opened_by_all(opened, ranks))


def _opened_by_all(opened: dict[int, States], ranks: Ranks) -> dict[int, States]:
    """What every process has opened: they are to compute alike."""
    depths = set.intersection(*ranks.gathered(set(opened)))
    return {depth: states for depth, states in opened.items() if depth in depths}


def _entries(
    encoder: Encoder,
    rows: RowSet,
    depths: Sequence[int],
    config: CacheConfig,
    arithmetic: str,
    keys: Mapping[int, str],
) -> dict[int, Entry]:
    lengths = digest(np.ascontiguousarray(rows.lengths, dtype=np.int64).tobytes())
    # What all depths share: sequences, arithmetic, precision, and the embeddings below them.
    group = digest(rows.texts, lengths, arithmetic, config.cache_precision, keys[0])[:16]
    return {
        depth: Entry(
            name=f"{group}-{depth:02d}-{keys[depth][:16]}",
            about=rows.about,
            depth=depth,
            width=encoder.config.hidden_size,
            precision=config.cache_precision,
            rows=len(rows.lengths),
            tokens=rows.tokens,
            lengths=lengths,
            encoder=rows.encoder,
        )
        for depth in depths
    }


def _open_entries(
    opened: dict[int, States], folder: Path, entries: Mapping[int, Entry], rows: RowSet, note: Note
) -> None:
    for depth in entries.keys() - opened.keys():
        states = find_states(folder, entries[depth], rows.lengths, note)
        if states is not None:
            opened[depth] = states


def _fitting(
    folder: Path,
    missing: Mapping[int, Entry],
    entries: Mapping[int, Entry],
    config: CacheConfig,
    note: Note,
) -> dict[int, Entry]:
    """The most useful of the missing entries, as many as there is space for."""
    if not missing:
        return {}
    needed = sum(entry.bytes for entry in missing.values())
    keep = {entry.name for entry in entries.values()}
    left = free_space(folder, needed, int(config.cache_gib * GIB), keep)
    size = next(iter(missing.values())).bytes  # the same at every depth: N tokens of D numbers
    depths = list(missing)[: left // size if size else len(missing)]
    if len(depths) < len(missing):
        note(
            f"{folder}: space for {left / GIB:.2f} of {needed / GIB:.2f} GiB of hidden states; "
            f"{len(missing) - len(depths)} of {len(missing)} boundaries are recomputed each epoch "
            "(raise cache_gib, or clear the cache)"
        )
    return {depth: missing[depth] for depth in depths}


def _fill(
    encoder: Encoder,
    folder: Path,
    entries: Mapping[int, Entry],
    rows: RowSet,
    batches: Iterable[tuple[Rows, Mapping[str, Tensor]]],
    ranks: Ranks,
) -> None:
    """Let every process write its part; the first one makes the files, and lets them appear."""
    depths, is_first = sorted(entries), ranks.rank == 0
    writers: list[Writer] = []
    with ExitStack() as stack:

        def open_writers(is_due: bool) -> None:
            for depth in depths if is_due else ():
                writer = Writer(folder, entries[depth], rows.lengths, makes=is_first)
                writers.append(stack.enter_context(writer))

        ranks.agreed(lambda: open_writers(is_first))
        ranks.agreed(lambda: open_writers(not is_first))  # what the first one has made by now
        ranks.agreed(lambda: _write_part(encoder, depths, writers, batches))
        written = ranks.gathered([writer.written for writer in writers])
        ranks.agreed(lambda: _finish(writers, written) if is_first else None)


def _write_part(
    encoder: Encoder,
    depths: Sequence[int],
    writers: Sequence[Writer],
    batches: Iterable[tuple[Rows, Mapping[str, Tensor]]],
) -> None:
    device = next(encoder.parameters()).device
    for numbers, batch in batches:
        moved = {name: t.to(device, non_blocking=True) for name, t in batch.items()}
        for writer, states in zip(writers, frozen_states(encoder, moved, depths), strict=True):
            writer.write(numbers, states.cpu())


def _finish(writers: Sequence[Writer], written: Sequence[Sequence[NDArray[np.bool_]]]) -> None:
    for number, writer in enumerate(writers):
        writer.written = np.logical_or.reduce([part[number] for part in written])
        writer.finish()
