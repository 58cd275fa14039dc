from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import POSITIONS
from finetune.encoder.scores import SCORES
from finetune.errors import ConfigError
from finetune.training.prefix.states import (
    TILE,
    arithmetic_key,
    frozen_hidden,
    frozen_states,
    weight_keys,
)

LENGTHS = torch.tensor([30, 17, 16, 9, 25, 2, 12, 18])
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_position": "pre"},
    {"causal": True},
    {"embedding_size": 8},
    {"hidden_act": "swiglu"},
    *({"position": position} for position in POSITIONS),
    *({"attention_score": score} for score in SCORES),
    {"block": "lstm"},
    {"block": "lstm", "causal": True, "norm_position": "pre"},
    {"block": "conv"},
    {"block": "conv", "causal": True, "hidden_act": "swiglu"},
]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def make(**changes: Any) -> Encoder:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    return Encoder(EncoderConfig(**{**sizes, **changes}))


def batch_of(rows: list[int], length: int, *, mask: bool | None = None) -> dict[str, Tensor]:
    """Texts of LENGTHS tokens; the mask is left out where nothing is hidden, unless asked for."""
    everything = torch.randint(1, 50, (8, 30), generator=torch.Generator().manual_seed(1))
    visible = torch.arange(length) < LENGTHS[rows, None]
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    ids[:, :30] = everything[rows, :length]
    batch = {"input_ids": ids.masked_fill(~visible, 0)}
    batch["token_type_ids"] = (torch.arange(length) > 4).long().expand(len(rows), -1)
    if mask or (mask is None and not visible.all()):
        batch["attention_mask"] = visible
    return batch


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_frozen_states_are_those_of_the_encoder_in_eval_mode(variant: dict[str, Any]) -> None:
    encoder, batch = make(**variant), batch_of(list(range(8)), 30)
    states = frozen_states(encoder, batch, range(4))
    expected = encoder.eval()(batch, output_hidden_states=True).hidden_states
    for mine, theirs in zip(states, expected, strict=True):
        real = batch["attention_mask"]
        torch.testing.assert_close(mine[real], theirs[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([3], 9),
        ([5], 2),
        ([2], 16),
        ([1, 3], 17),
        ([7, 6, 5, 3], 18),
        ([0, 1, 4], 33),
        ([3, 2], 64),
    ],
)
def test_frozen_states_are_bit_equal_in_every_batch_and_padding(
    variant: dict[str, Any], rows: list[int], length: int
) -> None:
    encoder = make(**variant)
    all_states = frozen_states(encoder, batch_of(list(range(8)), 30), range(4))
    states = frozen_states(encoder, batch_of(rows, length), range(4))
    for all_together, few in zip(all_states, states, strict=True):
        for place, row in enumerate(rows):
            end = LENGTHS[row]
            assert torch.equal(few[place, :end], all_together[row, :end])


def test_mask_that_hides_nothing_changes_no_bit() -> None:
    encoder = make()
    for length in (TILE, 9):
        row = [2] if length == TILE else [3]
        without, with_mask = batch_of(row, length), batch_of(row, length, mask=True)
        assert "attention_mask" not in without
        assert torch.equal(
            frozen_states(encoder, without, [3])[0], frozen_states(encoder, with_mask, [3])[0]
        )


@pytest.mark.parametrize("variant", [{}, {"position": "rotary"}, {"norm_position": "pre"}], ids=str)
def test_going_on_from_a_lower_boundary_is_bit_equal(variant: dict[str, Any]) -> None:
    encoder, batch = make(**variant), batch_of(list(range(8)), 30)
    real = batch["attention_mask"]
    states = frozen_states(encoder, batch, range(4))
    for start in range(4):
        kept = states[start].masked_fill(~real[..., None], 0.0)  # as the cache gives them
        for end in range(start, 4):
            hidden = frozen_hidden(encoder, batch, end, (kept, start))
            assert torch.equal(hidden[real], states[end][real])


def test_suffix_does_not_look_at_padded_places() -> None:
    encoder, batch = make().eval(), batch_of(list(range(8)), 30)
    real = batch["attention_mask"]
    for depth in range(4):
        hidden = encoder.prefix(batch, depth)
        noise = torch.where(real[..., None], hidden, torch.randn_like(hidden))
        ends = [encoder.suffix(states, real, depth)[real] for states in (hidden, noise)]
        assert torch.equal(*ends)


def test_mask_of_rows_and_given_positions_are_padded_too() -> None:
    encoder, batch = make().eval(), batch_of([1, 4], 25)
    batch["attention_mask"] = batch["attention_mask"][:, None, :].expand(-1, 25, -1)
    batch["position_ids"] = torch.arange(25).flip(0).expand(2, -1)
    hidden = frozen_states(encoder, batch, [3])[0]
    expected = encoder.prefix(batch, 3)
    torch.testing.assert_close(hidden[0, :17], expected[0, :17], rtol=1e-5, atol=1e-5)


def test_length_may_reach_the_last_learned_position() -> None:
    encoder, batch = make(max_position_embeddings=30).eval(), batch_of(list(range(8)), 30)
    real = batch["attention_mask"]
    hidden = frozen_states(encoder, batch, [3])[0]
    torch.testing.assert_close(hidden[real], encoder.prefix(batch, 3)[real], rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="learned positions reach 29"):
        frozen_states(make(max_position_embeddings=29), batch, [0])


def test_modes_and_gradients_are_left_as_they_were() -> None:
    encoder = make().train()
    encoder.blocks[0].eval()
    modes = [part.training for part in encoder.modules()]
    states = frozen_states(encoder, batch_of([0], 30), [2])[0]
    assert not states.requires_grad
    assert [part.training for part in encoder.modules()] == modes
    assert torch.equal(states, frozen_states(encoder, batch_of([0], 30), [2])[0])  # no dropout


def test_blocks_between_two_boundaries_make_the_whole() -> None:
    encoder, batch = make(norm_position="pre").eval(), batch_of(list(range(8)), 30)
    mask = batch.get("attention_mask")
    hidden = encoder.suffix(encoder.prefix(batch, 1), mask, 1, until=3)
    assert torch.equal(hidden, encoder.prefix(batch, 3))


def test_key_of_a_depth_depends_on_the_weights_below_it_only() -> None:
    encoder = make(norm_position="pre")
    before = weight_keys(encoder, range(4))
    assert len(set(before.values())) == 4
    with torch.no_grad():
        encoder.blocks[1].attention.key.weight[0, 0] += 1e-6
    after = weight_keys(encoder, range(4))
    assert [after[depth] == before[depth] for depth in range(4)] == [True, True, False, False]


def test_key_of_the_last_depth_depends_on_the_final_norm() -> None:
    encoder = make(norm_position="pre")
    before = weight_keys(encoder, [2, 3])
    with torch.no_grad():
        encoder.final_norm.bias += 1
    after = weight_keys(encoder, [2, 3])
    assert (after[2], after[3] == before[3]) == (before[2], False)


def test_key_depends_on_settings_that_change_the_arithmetic_only() -> None:
    encoder = make()
    key = weight_keys(encoder, [1])[1]

    def key_with(**changes: Any) -> str:
        other = make(**changes)
        other.load_state_dict(encoder.state_dict(), strict=False)
        return weight_keys(other, [1])[1]

    assert key_with(hidden_dropout_prob=0.5, num_hidden_layers=1) == key
    assert key_with(causal=True) != key
    assert key_with(num_attention_heads=4) != key
    assert key_with(layer_norm_eps=1e-6) != key


def test_arithmetic_names_device_version_and_precision() -> None:
    key = arithmetic_key(torch.device("cpu"), "32-true")
    assert key.startswith("cpu ")
    assert torch.__version__ in key
    assert key != arithmetic_key(torch.device("cpu"), "bf16-mixed")
