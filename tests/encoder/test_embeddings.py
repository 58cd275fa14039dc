from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import EncoderConfig
from finetune.encoder.embeddings import Embeddings, rotate, rotation, sinusoids
from finetune.errors import ConfigError

Tiny = Callable[..., EncoderConfig]


def test_sinusoids_agree_with_the_formula_of_the_paper() -> None:
    table = sinusoids(torch.arange(9), 6)
    for position in range(9):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_rotation_is_that_of_complex_numbers() -> None:
    inputs, theta = torch.randn(1, 2, 5, 6), 100.0
    turned = rotate(inputs, rotation(torch.arange(5)[None], 6, theta))
    pairs = torch.complex(inputs[..., :3], inputs[..., 3:])
    angles = torch.arange(5)[:, None] / theta ** (torch.arange(0, 6, 2) / 6)
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), dim=-1))


def test_rotated_products_depend_on_the_distance_only() -> None:
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(query_position: int, key_position: int) -> Tensor:
        positions = [torch.tensor([[p]]) for p in (query_position, key_position)]
        turned = [rotation(position, 8, 10000.0) for position in positions]
        return (rotate(query, turned[0]) * rotate(key, turned[1])).sum()

    torch.testing.assert_close(product(9, 4), product(105, 100), atol=1e-5, rtol=1e-4)
    assert (product(9, 4) - product(9, 5)).abs() > 1e-3


def test_rotation_keeps_the_dtype_of_the_queries() -> None:
    inputs = torch.randn(1, 1, 3, 4, dtype=torch.bfloat16)
    assert rotate(inputs, rotation(torch.arange(3)[None], 4, 10.0)).dtype == torch.bfloat16


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "none"])
def test_default_positions_and_segment_are_the_first_ones(
    tiny: Tiny, batch: dict[str, Tensor], position: str
) -> None:
    embeddings = Embeddings(tiny(position=position))
    ids = batch["input_ids"]
    given = {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "position_ids": torch.arange(7).expand_as(ids),
    }
    torch.testing.assert_close(embeddings({"input_ids": ids}), embeddings(given))


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_position_ids_move_the_positions(
    tiny: Tiny, batch: dict[str, Tensor], position: str
) -> None:
    embeddings = Embeddings(tiny(position=position))
    ids = batch["input_ids"][:1]
    shifted = {"input_ids": ids, "position_ids": torch.arange(7)[None] + 3}
    longer = {"input_ids": torch.cat((ids[:, :3], ids), dim=1)}
    torch.testing.assert_close(embeddings(shifted), embeddings(longer)[:, 3:])


def test_without_segments_token_type_ids_change_nothing(
    tiny: Tiny, batch: dict[str, Tensor]
) -> None:
    embeddings = Embeddings(tiny(type_vocab_size=0))
    assert not any("token_type" in name for name, _ in embeddings.named_parameters())
    assert torch.equal(embeddings(batch), embeddings({"input_ids": batch["input_ids"]}))


def test_embedding_size_is_projected_to_the_hidden_size(
    tiny: Tiny, batch: dict[str, Tensor]
) -> None:
    embeddings = Embeddings(tiny(embedding_size=6))
    assert embeddings.word_embeddings.weight.shape == (50, 6)
    assert embeddings(batch).shape == (3, 7, 16)


def test_a_text_longer_than_learned_positions_is_refused(tiny: Tiny) -> None:
    ids = torch.ones(1, 21, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"reach 20 tokens .* got a sequence of 21; lower"):
        Embeddings(tiny())({"input_ids": ids})
    assert Embeddings(tiny(position="sinusoidal"))({"input_ids": ids}).shape == (1, 21, 16)


def test_word_dropout_drops_all_tokens_of_a_word(tiny: Tiny) -> None:
    embeddings = Embeddings(tiny(word_dropout_prob=0.5, position="none", type_vocab_size=0))
    embeddings.norm = nn.Identity()
    ids = torch.arange(1, 50).repeat(1, 2)
    first, second = embeddings.train()({"input_ids": ids})[0].chunk(2)
    assert torch.equal(first, second)
    gone = (first == 0).all(dim=-1)
    assert 10 < gone.sum() < 40
    words = embeddings.word_embeddings.weight[1:]
    torch.testing.assert_close(first[~gone], 2 * words[~gone])
    assert torch.equal(embeddings.eval()({"input_ids": ids})[0, :49], words)
