"""Check that a graph computes the model's outputs, on batches of many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from finetune.errors import CheckpointError
from finetune.export.model import WholeModel
from finetune.export.onnx_graph import Session

TOLERANCE = 1e-4
"""Largest allowed difference of an output from the model's, relative to the largest output if that
exceeds 1."""
LONGEST = 512
"""Tokens of the longest batch that is compared."""
SHAPES = ((1, 1), (1, 6), (5, 1), (4, 17))
"""Sequences and tokens of the batches; one more has a single sequence of the maximal length."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of a graph's outputs with the model's."""

    batches: int
    """Batches that were compared."""
    longest: int
    """Tokens of the longest sequence."""
    largest_difference: float
    """Over all outputs, relative as `TOLERANCE` is."""


def check_graph(model: WholeModel, session: Session, max_length: int | None) -> Agreement:
    """Compare a graph with the model on random tokens: one or many sequences, padded or not.

    Without padding the model gets no mask and the graph a full one, as each is used in practice.

    Args:
        model: The model, in eval mode on the CPU.
        session: Its graph.
        max_length: Tokens of the longest sequence in its run; None if that is not known.

    Raises:
        CheckpointError: An output differs by more than 1e-4, or has another shape.
    """
    differences, lengths = [], set()
    for batch, padded in _batches(model, max_length):
        given = dict(zip(model.inputs, batch, strict=True))
        with torch.no_grad():
            mask = batch[1] if padded else None
            expected = model(batch[0], mask, *batch[2:])
        outputs = session({name: tensor.numpy() for name, tensor in given.items()})
        for name, right, actual in zip(model.outputs, expected, outputs, strict=True):
            difference = _difference(right.numpy(), actual)
            if not difference <= TOLERANCE:  # written so that NaN fails too
                raise CheckpointError(
                    f"the graph's {name} differ by {difference:.2g} from the model's on a batch of "
                    f"shape {tuple(batch[0].shape)}, expected at most {TOLERANCE:g}; nothing was "
                    "written; try another version of torch or onnxruntime"
                )
            differences.append(difference)
        lengths.add(batch[0].shape[-1])
    return Agreement(len(differences) // len(model.outputs), max(lengths), max(differences))


def _batches(
    model: WholeModel, max_length: int | None
) -> Iterator[tuple[tuple[Tensor, ...], bool]]:
    """Inputs in the order of `model.inputs`, without and with padding."""
    config, generator = model.encoder.config, torch.Generator().manual_seed(0)
    allowed = config.max_position_embeddings if config.position == "learned" else LONGEST
    longest = min(allowed, max_length or LONGEST, LONGEST)
    for count, length in (*SHAPES, (1, longest)):
        shape = (count, *([] if model.options is None else [model.options]), min(length, longest))
        ids = torch.randint(config.vocab_size, shape, generator=generator)
        segments = torch.randint(max(config.type_vocab_size, 1), shape, generator=generator)
        lengths = torch.randint(1, shape[-1] + 1, shape[:-1], generator=generator).unsqueeze(-1)
        for padded in (False, True):
            ends = lengths if padded else shape[-1]
            mask = (torch.arange(shape[-1]) < ends).long().expand(shape)
            yield (ids, mask, segments)[: len(model.inputs)], padded


def _difference(expected: np.ndarray, actual: np.ndarray) -> float:
    if expected.shape != actual.shape:
        return float("nan")
    finite = np.abs(expected[expected > np.finfo(expected.dtype).min])  # the rest is padding
    scale = max(1.0, float(finite.max(initial=0.0)))
    return float(np.abs(expected.astype(np.float64) - actual).max()) / scale
