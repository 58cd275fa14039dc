"""A tiny encoder and a tiny batch: 2 blocks, D 16, two heads, 7 tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.encoder import EncoderConfig


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def tiny() -> Callable[..., EncoderConfig]:
    """Make a tiny config without dropout; what differs is given by name."""

    def make(**changes: Any) -> EncoderConfig:
        sizes = {
            "vocab_size": 50,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 20,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            # Larger than BERT's: a tiny net's hidden states then depend visibly on their inputs.
            "initializer_range": 0.3,
        }
        return EncoderConfig(**{**sizes, **changes})

    return make


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Three texts of 7, 4 and 2 tokens in two segments, padded to 7."""
    lengths = torch.tensor([7, 4, 2])
    attention_mask = torch.arange(7) < lengths[:, None]
    return {
        "input_ids": torch.randint(1, 50, (3, 7)).masked_fill(~attention_mask, 0),
        "attention_mask": attention_mask,
        "token_type_ids": (torch.arange(7) >= lengths[:, None] // 2).long(),
    }
