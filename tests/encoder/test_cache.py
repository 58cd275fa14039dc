"""Keys and values of earlier tokens: steps with a cache give what one pass over the text gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.attention import SelfAttention
from finetune.encoder.cache import Cache, KeyValues
from finetune.encoder.config import POSITIONS
from finetune.encoder.scores import SCORES
from finetune.errors import ConfigError

Tiny = Callable[..., EncoderConfig]


def in_steps(encoder: Encoder, batch: dict[str, Tensor], steps: list[int]) -> Tensor:
    """Last hidden states (B, T, D), with the tokens read a few at a time."""
    cache, start, states = Cache(len(encoder.blocks)), 0, []
    for count in steps:
        part = {name: value[:, start : start + count] for name, value in batch.items()}
        if "attention_mask" in batch:
            part["attention_mask"] = batch["attention_mask"][:, : start + count]
        states.append(encoder(part, cache=cache).last_hidden_state)
        start += count
        assert cache.length == start
    return torch.cat(states, dim=1)


VARIANTS: list[dict[str, Any]] = [
    *({"position": position} for position in POSITIONS),
    *({"attention_score": score} for score in SCORES),
    {"norm_position": "pre"},
    {"position": "rotary", "local_attention": 2, "global_every": 2, "num_hidden_layers": 3},
    {"embedding_size": 8, "type_vocab_size": 0},
]


@torch.no_grad()
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("steps", [[7], [1] * 7, [4, 1, 2]], ids=str)
def test_a_text_in_steps_has_the_states_of_the_text_at_once(
    tiny: Tiny, batch: dict[str, Tensor], changes: dict[str, Any], steps: list[int]
) -> None:
    encoder = Encoder(tiny(causal=True, **changes)).eval()
    inputs = {"input_ids": batch["input_ids"]}
    expected = encoder(inputs).last_hidden_state
    torch.testing.assert_close(in_steps(encoder, inputs, steps), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("position", POSITIONS)
def test_texts_padded_on_the_left_have_the_states_of_each_alone(tiny: Tiny, position: str) -> None:
    encoder = Encoder(tiny(causal=True, position=position)).eval()
    short, long = torch.tensor([5, 9, 11]), torch.tensor([3, 8, 2, 30, 7])
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    batch = {
        "input_ids": torch.stack([torch.cat([torch.zeros(2, dtype=torch.int64), short]), long]),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
    }
    states = in_steps(encoder, batch, [3, 1, 1])
    for row, ids in ((states[0, 2:], short), (states[1], long)):
        alone = encoder({"input_ids": ids[None]}).last_hidden_state[0]
        torch.testing.assert_close(row, alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_selected_rows_go_on_as_if_they_had_been_alone(
    tiny: Tiny, batch: dict[str, Tensor]
) -> None:
    encoder, ids = Encoder(tiny(causal=True)).eval(), batch["input_ids"]
    cache, rows = Cache(2), torch.tensor([2, 0, 0])
    encoder({"input_ids": ids[:, :5]}, cache=cache)
    cache.select(rows)
    last = encoder({"input_ids": ids[rows, 5:]}, cache=cache).last_hidden_state
    expected = encoder({"input_ids": ids[rows]}).last_hidden_state[:, 5:]
    torch.testing.assert_close(last, expected, atol=1e-5, rtol=1e-5)


def test_an_empty_cache_may_be_selected_from() -> None:
    past = KeyValues()
    past.select(torch.tensor([0]))
    assert past.length == 0


def test_an_encoder_that_reads_in_both_directions_has_no_cache(tiny: Tiny) -> None:
    with pytest.raises(ConfigError, match="needs a causal encoder"):
        Encoder(tiny())({"input_ids": torch.ones(1, 3, dtype=torch.int64)}, cache=Cache(2))


def test_a_cache_ends_where_learned_positions_end(tiny: Tiny) -> None:
    encoder, cache = Encoder(tiny(causal=True, max_position_embeddings=4)).eval(), Cache(2)
    encoder({"input_ids": torch.ones(1, 3, dtype=torch.int64)}, cache=cache)
    with pytest.raises(ConfigError, match=r"reach 4 tokens .* got 5 with those in the cache"):
        encoder({"input_ids": torch.ones(1, 2, dtype=torch.int64)}, cache=cache)


@pytest.mark.parametrize("block", ["lstm", "conv"])
def test_a_block_without_attention_has_no_keys_to_keep(tiny: Tiny, block: str) -> None:
    encoder = Encoder(tiny(causal=True, block=block, position="none")).eval()
    with pytest.raises(ConfigError, match=rf"cache: expected block transformer, got {block}, .*"):
        encoder({"input_ids": torch.ones(1, 2, dtype=torch.int64)}, cache=Cache(2))


@torch.no_grad()
def test_keys_and_values_of_a_memory_are_computed_once(tiny: Tiny) -> None:
    attention, past = SelfAttention(tiny(), memory_size=8).eval(), KeyValues()
    hidden, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 8)
    expected, _ = attention(hidden, memory=memory)
    steps = [attention(hidden[:, step : step + 1], memory=memory, past=past) for step in range(3)]
    torch.testing.assert_close(torch.cat([mixed for mixed, _ in steps], 1), expected)
    assert past.length == 5
