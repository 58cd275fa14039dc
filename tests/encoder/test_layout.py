"""Unpadded tokens: what is computed without padding is what is computed with it."""

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.layout import Unpadded

MASK = torch.arange(6) < torch.tensor([[6], [1], [4]])
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.2,
}


def test_real_tokens_keep_their_order_and_repetitions_fill_up() -> None:
    hidden = torch.arange(18.0).view(3, 6, 1)
    layout = Unpadded.from_mask(MASK, 4)
    expected = [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15]
    assert layout.unpad(hidden).squeeze(1).tolist() == [*expected, 0]
    assert (layout.tokens, layout.shape) == (11, (3, 6))


def test_padding_comes_back_as_zeros() -> None:
    hidden = torch.randn(3, 6, 5)
    layout = Unpadded.from_mask(MASK, 4)
    assert torch.equal(layout.pad(layout.unpad(hidden)), hidden * MASK[..., None])


@pytest.mark.parametrize("multiple", [1, 16])
def test_few_tokens_fill_two_multiples(multiple: int) -> None:
    one_token = torch.ones(1, 1, dtype=torch.bool)
    assert len(Unpadded.from_mask(one_token, multiple).indices) == 2 * multiple


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
        unpadded = encoder.suffix(
            hidden, MASK, start, until=end, layout=Unpadded.from_mask(MASK, 16)
        )
    torch.testing.assert_close(unpadded, plain * MASK[..., None], atol=1e-5, rtol=1e-5)
