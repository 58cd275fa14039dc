"""The attention weights of one text or pair, head by head.

How not to read them. A weight is how much of a token's value vector is mixed in, not how much the
token matters to an answer: other weights can give the same prediction (Jain and Wallace, 2019),
which does not make them meaningless either (Wiegreffe and Pinter, 2019); a large weight on a short
value vector changes little, as for [SEP] (Kobayashi et al., 2020); and above the first block a
position is a mixture of tokens, no longer the token written there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from finetune.encoder import Encoder
from finetune.jobs.sources import longest_text
from finetune.text.features.pairs import collate, encode_pairs
from finetune.text.tokenizer.tokenizer import Tokenizer, token_text

MAP_LENGTH = 128
"""Default limit of tokens in a map, which grows with their square."""
DIGITS = 4
"""Decimal places of a weight in JSON."""


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of all heads for one text or pair."""

    tokens: tuple[str, ...]
    """The T tokens as the vocabulary spells them."""
    segments: tuple[int, ...]
    """0 for the first text, 1 for the second (T,)."""
    weights: npt.NDArray[np.float32]
    """float32 (L, H, T, T): layer, head, query token, key token; each row sums to 1."""
    trimmed: int = 0
    """Number of tokens beyond the maximal length, which are not shown."""

    @property
    def layers(self) -> int:
        """Number of blocks, L."""
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        """Number of attention heads of a block, H."""
        return int(self.weights.shape[1])

    def as_json(self) -> dict[str, Any]:
        """The map as plain values.

        Returns:
            `tokens` and `segments` (T,), `layers`, `heads`, `trimmed`, and `weights`: nested lists
            in the order layer, head, query token, key token, rounded to four places.
        """
        return {
            "tokens": list(self.tokens),
            "segments": list(self.segments),
            "layers": self.layers,
            "heads": self.heads,
            "trimmed": self.trimmed,
            "weights": [
                [[[round(w, DIGITS) for w in row] for row in head] for head in layer]
                for layer in self.weights.tolist()
            ],
        }


@torch.no_grad()
def attention_map(
    encoder: Encoder,
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    max_length: int | None = None,
) -> AttentionMap:
    """Run a text, or a pair of texts, and return the attention weights of all heads.

    Args:
        encoder: In eval mode, on any device.
        tokenizer: Its tokenizer.
        text: The text, or the first of a pair.
        pair: The second of a pair.
        max_length: Longest sequence in tokens, special tokens included; default 128.

    Raises:
        ConfigError: The encoder has fewer learned positions, or the length leaves none for text.
    """
    longest = longest_text(encoder.config, max_length)
    if max_length is None:
        longest = min(longest, MAP_LENGTH)
    feature = encode_pairs(tokenizer, [text], None if pair is None else [pair], longest)[0]
    batch = collate([feature], [0], tokenizer.pad_token_id)
    device = next(encoder.parameters()).device
    moved = {name: tensor.to(device) for name, tensor in batch.items()}
    attentions = encoder(moved, output_attentions=True).attentions
    weights = torch.cat(list(attentions)).float().cpu().numpy()  # (L, H, T, T)
    return AttentionMap(
        tokens=tuple(token_text(tokenizer, int(number)) for number in feature.input_ids),
        segments=tuple(int(number) for number in feature.token_type_ids),
        weights=weights,
        trimmed=feature.trimmed,
    )
