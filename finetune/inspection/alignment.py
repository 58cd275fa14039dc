"""Cross-attention: from which tokens of a source each token of a target was written.

The map of Bahdanau et al. (2015, figure 3). How not to read it: as any attention (`attention.py`),
a weight is how much of a state was mixed in, and that state is a mixture of tokens itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from finetune.console.output import counted
from finetune.console.tables import table
from finetune.errors import ConfigError
from finetune.heads import Seq2Seq
from finetune.jobs.prediction import Predictor, load
from finetune.text.features.pairs import collate
from finetune.text.tokenizer.tokenizer import token_text
from finetune.training.answering import ReadsAnswers

DIGITS = 4
"""Decimal places of a weight in JSON."""


@dataclass(frozen=True)
class Alignment:
    """Weights of cross-attention for one source and the target that was written."""

    source: tuple[str, ...]
    """The T tokens that were read, as the vocabulary spells them."""
    target: tuple[str, ...]
    """The S tokens that were written, the end token included."""
    weights: npt.NDArray[np.float32]
    """Mean over the heads of each block, float32 (L, S, T); each row sums to 1."""

    def as_json(self) -> dict[str, Any]:
        """`source`, `target`, and `alignment`: nested lists by block, target and source token."""
        return {
            "source": list(self.source),
            "target": list(self.target),
            "alignment": [
                [[round(weight, DIGITS) for weight in row] for row in block]
                for block in self.weights.tolist()
            ],
        }


@torch.no_grad()
def alignment(run: str | Path, *texts: str) -> Alignment:
    """Write a target for a source, and return what the decoder looked at.

    Args:
        run: Folder of a run of `finetune write`; of several seeds, the best one writes.
        texts: The source: one text, or two where the run's have two.

    Raises:
        ConfigError: The run writes nothing, its decoder reads one vector, or its sources have
            another number of texts.
        DataError: The source is empty.
    """
    predictor = load(run)
    module = predictor.module
    if not isinstance(predictor, Predictor) or not isinstance(module, ReadsAnswers):
        raise ConfigError(f"{run}: expected a run of finetune write, got a language model")
    head = module.head
    if not isinstance(head, Seq2Seq):
        raise ConfigError(
            f"{run}: expected a run of finetune write, got one of {module.task.name}; its "
            "attention is shown by finetune inspect attention"
        )
    names = tuple(getattr(module.task, "fields", ("text",)))
    if len(texts) != len(names):
        raise ConfigError(
            f"{run}: expected {' and '.join(names)}, as a source of {module.task.name} has, got "
            f"{counted(len(texts), 'text')}"
        )
    example = module.task.example(dict(zip(names, texts, strict=True)), "the source", 0)
    (feature,) = module.task.features(
        [example], predictor.tokenizer, predictor.max_length, training=False
    )
    batch = collate([feature], [0], predictor.tokenizer.pad_token_id)
    device = next(module.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    hidden, mask = module.hidden(batch), batch.get("attention_mask")
    ids = head.search_targets(hidden, mask).ids  # (1, S)
    count = int((ids != head.end).sum()) + 1
    ids = ids[:, :count]
    weights = head.align(hidden, mask, ids)[:, 0].mean(dim=1)  # (L, S, T)
    sequences = feature.input_ids, ids[0].tolist()
    source, target = (
        tuple(token_text(predictor.tokenizer, int(one)) for one in row) for row in sequences
    )
    return Alignment(source, target, weights.float().cpu().numpy())


def alignment_table(found: Alignment) -> str:
    """The last block's weights in percent: a row for each token written, a column for each read."""
    rows = [
        [token, *(f"{100 * weight:.0f}" for weight in row)]
        for token, row in zip(found.target, found.weights[-1].tolist(), strict=True)
    ]
    return table(rows, ["written", *found.source])
