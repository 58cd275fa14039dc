"""What answers: an encoder with a task's head, the batches it reads, and what comes out of it.

Neither a Trainer nor an optimizer is known here: a first answer does not wait for Lightning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from finetune.encoder import Encoder
from finetune.heads import TaskHead, head_logits, states_for
from finetune.task.interface import Answer, Outputs, Task
from finetune.text.features.pairs import Features, collate
from finetune.text.features.units import Units
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.ranks import ALONE, Indices, Ranks

Batch = dict[str, Tensor]


class Answering(Protocol):
    """What answers are read off: a fine-tuned model, or several that answer together."""

    task: Task
    decision: dict[str, float]

    def read(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers to a batch are read off, float32 (B, …)."""

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The same, from logits, where answers are read off these."""

    def eval(self) -> Any:
        """Turn dropout off."""

    def parameters(self) -> Iterator[Tensor]:
        """The weights, all on one device."""


class ReadsAnswers(nn.Module):
    """Encoder and task head, of whose logits or texts answers are read off."""

    encoder: Encoder
    head: TaskHead
    task: Task
    decision: dict[str, float]
    """Numbers that were tuned on the first validation split when it was last scored."""

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The hidden states that the head reads, as of `states_for`."""
        return states_for(self.head, self.encoder, batch)

    def read(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers to a batch are read off, or are generated from, float32 (B, …)."""
        if self.head.generates:
            return self(batch, generate=True).float()  # type: ignore[no-any-return]
        return self.outputs(self(batch), batch)

    def outputs(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """What answers are read off: of a fixed size a unit, whatever T is, float32 (B, …)."""
        return self.head.outputs(logits, batch).float()


class Answerer(ReadsAnswers):
    """Encoder and task head of a checkpoint, which are not trained further."""

    def __init__(self, encoder: Encoder, head: TaskHead, task: Task) -> None:
        """Put a task's head on an encoder; the names are those of a checkpoint's weights."""
        super().__init__()
        self.encoder, self.head = encoder, head
        self.task, self.decision = task, {}

    def forward(self, batch: Mapping[str, Tensor], *, generate: bool = False) -> Tensor:
        """Logits of a batch, in the head's shape; or what a head that generates gives."""
        hidden = self.hidden(batch)
        if generate:
            return self.head.generate(hidden, batch)
        return head_logits(self.head, hidden, batch)


def batches_of(task: Task, features: Sequence[Features], tokenizer: Tokenizer) -> UnitBatches:
    """Makes the batches of a task's sequences."""
    starts = units_of(task, features).starts if task.long.pools_windows else None
    return UnitBatches(features, tokenizer.pad_token_id, task.sequences_per_example, starts)


class UnitBatches(Dataset[Batch]):
    """Unit numbers -> a padded batch for the FineTuner."""

    def __init__(
        self,
        features: Sequence[Features],
        pad_token_id: int,
        rows: int = 1,
        starts: Indices | None = None,
    ) -> None:
        """Keep the features; see `collate`."""
        self.features, self.pad_token_id = features, pad_token_id
        self.rows, self.starts = rows, starts

    def __getitem__(self, indices: Indices) -> Batch:
        """The batch of these units, padded to its longest sequence; of no units it is empty."""
        if not len(indices):
            return {}
        return collate(
            self.features, indices, self.pad_token_id, rows=self.rows, starts=self.starts
        )


def lengths_of(features: Sequence[Features]) -> Indices:
    """Tokens of each sequence."""
    return np.array([len(feature.input_ids) for feature in features], dtype=np.int64)


def units_of(task: Task, features: Sequence[Features]) -> Units:
    """The units of a task's sequences."""
    return Units.of(features, task.sequences_per_example, together=task.long.pools_windows)


def in_order(outputs: Sequence[Tensor], order: Sequence[Tensor]) -> Outputs:
    """Put the outputs of shuffled batches into the order of their units.

    Args:
        outputs: Of each batch, (B, …).
        order: Unit numbers of each batch, int64 (B,).

    Returns:
        Outputs of units 0 … U-1, float32 (U, …); of a unit that several batches have, one.
    """
    numbers = torch.cat(list(order)).cpu().numpy()
    _, first = np.unique(numbers, return_index=True)
    result: npt.NDArray[np.float32] = torch.cat(list(outputs)).cpu().numpy()[first]
    return result


@torch.no_grad()
def predict(
    module: Answering, batches: Iterable[Mapping[str, Tensor]], ranks: Ranks = ALONE
) -> Outputs:
    """Outputs of every unit of some batches, in the units' order; in eval mode and full precision.

    Args:
        module: On the device where it is to run.
        batches: With `index`: a loader, or any others.
        ranks: Processes that each have a part of the batches; all of them get all outputs.
    """
    module.eval()
    device = next(module.parameters()).device
    pairs = []
    for batch in filter(None, batches):
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        pairs.append((module.read(moved), batch["index"]))
    if ranks.size > 1:
        pairs = ranks.merged([(outputs.cpu(), order) for outputs, order in pairs])
    outputs, order = zip(*pairs, strict=True)
    return in_order(outputs, order)


def is_degenerate(answers: Sequence[Answer]) -> bool:
    """Whether every answer is the same: a run that has learned nothing from its texts."""
    # As text, since an answer may be a list of classes, which no set takes.
    return len(answers) > 1 and len({str(answer["prediction"]) for answer in answers}) == 1
