"""What kind of looking each head does: averages over the tokens of many texts.

The figures of Clark et al. (2019, sections 3.1 and 3.2): how far a head looks, how spread its
attention is, and how much of it falls on [CLS], on [SEP], on the token itself and on its
neighbours. A row for a head that looks everywhere alike stands beside them, since the shares
depend on how long the texts are.

What they do not say is in `attention.py`; of these figures above all: attention on [SEP] is mostly
a way of doing nothing (Clark et al., 2019, section 3.2; Kobayashi et al., 2020), and a head that
looks important by them can often be removed without loss (Michel et al., 2019).
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
from finetune.training.loop.task_data import UnitBatches

FIGURES = ("distance", "entropy", "cls_entropy", "cls", "sep", "self", "previous", "next")
"""Tokens; nats; nats, of what [CLS] looks at; and five shares of a token's attention."""
TOKENS_A_BATCH = 4096
"""So that the weights of a batch, which grow with the square of a text, stay small."""


@dataclass(frozen=True)
class HeadSummary:
    """Averages over tokens; a head whose attention is uniform beside them."""

    figures: dict[str, npt.NDArray[np.float64]]
    """Name in `FIGURES` -> average of each head (L, H)."""
    uniform: dict[str, float]
    """The same of a head that looks at all tokens of a text alike."""
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
        """A table with a line a head."""
        header = ["head", "distance", "entropy", "of [CLS]"]
        header += [f"{name} %" for name in ("[CLS]", "[SEP]", "self", "prev", "next")]
        rows = [_row(f"{head['layer']}.{head['head']}", head) for head in self.as_json()["heads"]]
        return table([*rows, _row("uniform", self.uniform)], header)


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    lengths = [f"{figures[key]:.2f}" for key in FIGURES[:3]]
    return [name, *lengths, *(f"{100 * figures[key]:.1f}" for key in FIGURES[3:])]


@torch.no_grad()
def summarise_heads(model: Model, sequences: Sequences) -> HeadSummary:
    """Run all sequences and average what each head does over their tokens.

    Args:
        model: The encoder and its tokenizer.
        sequences: N of them.
    """
    device = next(model.encoder.parameters()).device
    made = UnitBatches(sequences.features, model.tokenizer.pad_token_id)
    config = model.encoder.config
    sums = torch.zeros(len(FIGURES), config.num_hidden_layers + 1, config.num_attention_heads)
    sums, counts = sums.double(), torch.zeros(len(FIGURES), dtype=torch.float64)
    for rows in _batches(sequences.lengths):
        batch = {name: tensor.to(device) for name, tensor in made[rows].items()}
        ids = batch["input_ids"].cpu()
        mask = batch.get("attention_mask", torch.ones_like(ids, dtype=torch.bool)).cpu()
        keys = _Keys(ids == model.tokenizer.cls_token_id, ids == model.tokenizer.sep_token_id, mask)
        attentions = model.encoder(batch, output_attentions=True).attentions
        for layer, weights in enumerate([*attentions, keys.uniform(config.causal)]):
            figures, counted = keys.figures(weights.cpu().double())
            sums[:, layer] += figures  # (figures, H or 1)
        counts += counted
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
    """What the tokens of a batch are, each bool (B, T)."""

    cls: Tensor
    sep: Tensor
    real: Tensor

    def uniform(self, causal: bool) -> Tensor:
        """Attention on all that a token may see alike, (B, 1, T, T)."""
        length = self.real.shape[1]
        visible = self.real[:, None, None, :].expand(-1, -1, length, -1).double()
        visible = visible.tril() if causal else visible
        return visible / visible.sum(-1, keepdim=True).clamp(min=1)

    def figures(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the batch's tokens, and how many tokens each is over.

        Args:
            weights: float64 (B, H, T, T), zero where a key is padding.

        Returns:
            (figures, H), and (figures,).
        """
        place = torch.arange(weights.shape[-1])
        distance = (place[:, None] - place[None, :]).abs().double()  # (T, T)
        diagonals = [weights.diagonal(shift, -2, -1) for shift in (0, -1, 1)]  # (B, H, T or T - 1)
        spread = torch.special.entr(weights).sum(-1)
        behind = self.real[:, 1:]  # both of a neighbouring pair are there
        taken = [
            ((weights * distance).sum(-1), self.real),
            (spread, self.real),
            (spread, self.cls & self.real),
            ((weights * self.cls[:, None, None]).sum(-1), self.real),
            ((weights * self.sep[:, None, None]).sum(-1), self.real),
            (diagonals[0], self.real),
            (diagonals[1], behind),
            (diagonals[2], behind),
        ]
        sums = [(values * kept[:, None]).sum(dim=(0, 2)) for values, kept in taken]
        return torch.stack(sums), torch.stack([kept.sum() for _, kept in taken]).double()
