from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.convolution import Convolution
from finetune.encoder.layout import Rows
from finetune.heads.pooling import max_over_tokens

Tiny = Callable[..., EncoderConfig]


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # on an even width, as here
@pytest.mark.parametrize("widths", [(3, 4, 5), (2,), (1, 8)])
def test_filters_agree_with_torchs_in_each_text_alone(
    tiny: Tiny, batch: dict[str, Tensor], widths: tuple[int, ...]
) -> None:
    mine = Convolution(tiny(block="conv", conv_widths=widths, hidden_act="relu"))
    mask = batch["attention_mask"]
    hidden = torch.randn(*mask.shape, 16)
    states = mine(hidden, Rows.from_mask(mask))
    for row, length in enumerate([7, 4, 2]):
        text = hidden[row, :length].T[None]  # (1, D, T)
        parts = []
        for filters in mine.filters:
            same = nn.Conv1d(16, filters.out_channels, filters.kernel_size, padding="same")
            same.load_state_dict(filters.state_dict())
            parts.append(same(text).relu())
        expected = torch.cat(parts, dim=1)[0].T
        torch.testing.assert_close(states[row, :length], expected, atol=1e-6, rtol=1e-5)


def test_a_pooling_over_one_block_is_kims_network(tiny: Tiny) -> None:
    mine = Convolution(tiny(block="conv", hidden_size=6, hidden_act="relu", conv_widths=(2, 3)))
    hidden = torch.randn(1, 9, 6)
    features = []
    for filters in mine.filters:  # c_i = f(w · x_{i:i+h-1} + b), then the maximum over i
        width = filters.kernel_size[0]
        padded = F.pad(hidden[0], (0, 0, (width - 1) // 2, width // 2))
        windows = padded.unfold(0, width, 1)  # (T, D, width)
        sums = torch.einsum("tdw,fdw->tf", windows, filters.weight) + filters.bias
        features.append(sums.relu().amax(dim=0))
    torch.testing.assert_close(max_over_tokens(mine(hidden, None), None)[0], torch.cat(features))


def test_a_causal_filter_sees_no_later_token(tiny: Tiny) -> None:
    mine = Convolution(tiny(block="conv", causal=True))
    hidden = torch.randn(1, 9, 16)
    changed = hidden.clone()
    changed[:, 6:] += 1
    assert torch.equal(mine(hidden, None)[:, :6], mine(changed, None)[:, :6])
    assert not torch.equal(mine(hidden, None)[:, 6], mine(changed, None)[:, 6])


def test_widths_divide_the_filters_as_evenly_as_can_be(tiny: Tiny) -> None:
    assert tiny(block="conv").filter_counts == (6, 5, 5)


def test_a_token_sees_as_far_as_the_widths_of_all_blocks_reach(tiny: Tiny) -> None:
    encoder = Encoder(tiny(block="conv", conv_widths=(3,))).eval()
    ids = torch.randint(1, 50, (1, 20))
    states = encoder({"input_ids": ids}).last_hidden_state
    ids[0, 10] = ids[0, 10] % 49 + 1
    changed = (encoder({"input_ids": ids}).last_hidden_state != states).any(dim=-1)
    assert changed[0].nonzero().flatten().tolist() == [8, 9, 10, 11, 12]
