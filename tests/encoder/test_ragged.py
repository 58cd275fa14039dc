"""Real tokens as rows: what is computed without padding is what is computed with it."""

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.ragged import Ragged

MASK = torch.arange(6) < torch.tensor([[6], [1], [4]])
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.2,
}


def test_rows_are_the_real_tokens_in_their_order_and_repetitions_fill_up() -> None:
    hidden = torch.arange(18.0).view(3, 6, 1)
    ragged = Ragged.of(MASK, 4)
    expected = [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15]
    assert ragged.rows(hidden).squeeze(1).tolist() == [*expected, 0]
    assert (ragged.tokens, ragged.shape) == (11, (3, 6))


def test_padding_comes_back_as_zeros() -> None:
    hidden = torch.randn(3, 6, 5)
    ragged = Ragged.of(MASK, 4)
    assert torch.equal(ragged.padded(ragged.rows(hidden)), hidden * MASK[..., None])


@pytest.mark.parametrize("multiple", [1, 16])
def test_few_tokens_fill_two_multiples(multiple: int) -> None:
    assert len(Ragged.of(torch.ones(1, 1, dtype=torch.bool), multiple).places) == 2 * multiple


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_position": "pre", "position": "rotary", "hidden_act": "geglu"},
        {"attention_score": "additive", "causal": True},
    ],
)
@pytest.mark.parametrize(("start", "end"), [(0, 2), (0, 1), (1, 2), (2, 2)])
def test_blocks_compute_the_same_without_padding(
    variant: dict[str, object], start: int, end: int
) -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig.from_dict(SIZES | variant)).eval()
    hidden = torch.randn(3, 6, 16)
    with torch.no_grad():
        plain = encoder.suffix(hidden, MASK, start, until=end)
        ragged = encoder.suffix(hidden, MASK, start, until=end, ragged=Ragged.of(MASK, 16))
    torch.testing.assert_close(ragged, plain * MASK[..., None], atol=1e-5, rtol=1e-5)
