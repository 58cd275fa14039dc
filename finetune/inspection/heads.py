"""What each head attends to: averages over the tokens of many texts.

The figures of Clark et al. (2019, sections 3.1 and 3.2): how far a head attends, the entropy of its
attention, and the fraction of it on [CLS], on [SEP], on the token itself and on its neighbours. The
figures of uniform attention are given too, since the fractions depend on the length of the texts.

How not to read them is in `attention.py`; besides, attention on [SEP] is mostly a way of doing
nothing (Clark et al., 2019, section 3.2; Kobayashi et al., 2020), and a head that looks important
by these figures can often be removed without loss (Michel et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.inspection.layers import BATCH_SIZE
from finetune.jobs.sources import Model, Sequences
from finetune.text.features.pairs import length_batches
from finetune.training.answering import UnitBatches

FIGURES = ("distance", "entropy", "cls_entropy", "cls", "sep", "self", "previous", "next")
"""In tokens; in nats; in nats, for [CLS] alone; and five fractions of a token's attention."""
TOKENS_A_BATCH = 4096
"""Bounds the memory for the weights of a batch, which grows with the square of a text's length."""


@dataclass(frozen=True)
class HeadSummary:
    """Averages over tokens, of each head and of uniform attention."""

    figures: dict[str, npt.NDArray[np.float64]]
    """Name in `FIGURES` -> average of each head (L, H)."""
    uniform: dict[str, float]
    """The same for a head that attends to all tokens of a text equally."""
    sequences: int
    tokens: int

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values: `layers` lists `heads`, both from 1."""
        layers, heads = self.figures["distance"].shape
        return {
            "sequences": self.sequences,
            "tokens": self.tokens,
            "uniform": self.uniform,
            "heads": [
                {"layer": layer + 1, "head": head + 1}
                | {name: float(self.figures[name][layer, head]) for name in FIGURES}
                for layer in range(layers)
                for head in range(heads)
            ],
        }

    def as_text(self) -> str:
        """A table with one line for each head."""
        header = ["head", "distance", "entropy", "of [CLS]"]
        header += [f"{name} %" for name in ("[CLS]", "[SEP]", "self", "prev", "next")]
        rows = [_row(f"{head['layer']}.{head['head']}", head) for head in self.as_json()["heads"]]
        return table([*rows, _row("uniform", self.uniform)], header)


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    lengths = [f"{figures[key]:.2f}" for key in FIGURES[:3]]
    return [name, *lengths, *(f"{100 * figures[key]:.1f}" for key in FIGURES[3:])]


@torch.no_grad()
def summarize_heads(model: Model, sequences: Sequences) -> HeadSummary:
    """Run all sequences and average the figures of each head over their tokens.

    Args:
        model: The encoder and its tokenizer.
        sequences: The texts.
    """
    device = next(model.encoder.parameters()).device
    batches = UnitBatches(sequences.features, model.tokenizer.pad_token_id)
    config = model.encoder.config
    sums = torch.zeros(len(FIGURES), config.num_hidden_layers + 1, config.num_attention_heads)
    # Sums of millions of small numbers: float32 would lose the small ones.
    sums, counts = sums.double(), torch.zeros(len(FIGURES), dtype=torch.float64)
    for rows in _batches(sequences.lengths):
        batch = {name: tensor.to(device) for name, tensor in batches[rows].items()}
        ids = batch["input_ids"].cpu()
        mask = batch.get("attention_mask", torch.ones_like(ids, dtype=torch.bool)).cpu()
        keys = _Keys(ids == model.tokenizer.cls_token_id, ids == model.tokenizer.sep_token_id, mask)
        attentions = model.encoder(batch, output_attentions=True).attentions
        for layer, weights in enumerate([*attentions, keys.uniform(config.causal)]):
            figures, tokens = keys.figures(weights.cpu().double())
            sums[:, layer] += figures  # (figures, H or 1)
        counts += tokens
    averages = (sums / counts.clamp(min=1)[:, None, None]).numpy()
    return HeadSummary(
        {name: averages[number, :-1] for number, name in enumerate(FIGURES)},
        {name: float(averages[number, -1, 0]) for number, name in enumerate(FIGURES)},
        sequences=len(sequences.features),
        tokens=int(sequences.lengths.sum()),
    )


def _batches(lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    size = max(1, min(BATCH_SIZE, TOKENS_A_BATCH // int(lengths.max())))
    return length_batches(lengths, size, seed=0, epoch=0, shuffle=False)


@dataclass(frozen=True)
class _Keys:
    """Which tokens of a batch are [CLS], [SEP] and not padding, each bool (B, T)."""

    cls: Tensor
    sep: Tensor
    real: Tensor

    def uniform(self, causal: bool) -> Tensor:
        """Equal attention on all tokens that a token may attend to, (B, 1, T, T)."""
        length = self.real.shape[1]
        visible = self.real[:, None, None, :].expand(-1, -1, length, -1).double()
        visible = visible.tril() if causal else visible
        return visible / visible.sum(-1, keepdim=True).clamp(min=1)

    def figures(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the batch's tokens, and the number of tokens in each.

        Args:
            weights: float64 (B, H, T, T), zero where a key is padding.

        Returns:
            (figures, H), and (figures,).
        """
        position = torch.arange(weights.shape[-1])
        distance = (position[:, None] - position[None, :]).abs().double()  # (T, T)
        diagonals = [weights.diagonal(shift, -2, -1) for shift in (0, -1, 1)]  # (B, H, T or T - 1)
        entropy = torch.special.entr(weights).sum(-1)
        pairs = self.real[:, 1:]  # padding is at the end: where the second is real, so is the first
        parts = [
            ((weights * distance).sum(-1), self.real),
            (entropy, self.real),
            (entropy, self.cls & self.real),
            ((weights * self.cls[:, None, None]).sum(-1), self.real),
            ((weights * self.sep[:, None, None]).sum(-1), self.real),
            (diagonals[0], self.real),
            (diagonals[1], pairs),
            (diagonals[2], pairs),
        ]
        sums = [(values * included[:, None]).sum(dim=(0, 2)) for values, included in parts]
        return torch.stack(sums), torch.stack([included.sum() for _, included in parts]).double()
