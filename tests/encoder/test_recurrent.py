from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from finetune.encoder import EncoderConfig
from finetune.encoder.block import BLOCKS
from finetune.encoder.layout import Rows
from finetune.encoder.recurrent import Reader, Recurrent

Tiny = Callable[..., EncoderConfig]


def torchs(mine: Recurrent) -> nn.LSTM:
    """The same weights in torch's own module."""
    lstm = mine.ahead.lstm
    both = nn.LSTM(
        lstm.input_size, lstm.hidden_size, batch_first=True, bidirectional=mine.back is not None
    )
    weights = dict(lstm.state_dict())
    if mine.back is not None:
        back = mine.back.lstm.state_dict()
        weights |= {f"{name}_reverse": weight for name, weight in back.items()}
    both.load_state_dict(weights)
    return both


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cells", [None, 5])
def test_it_agrees_with_torch_and_packed_sequences_in_states_and_gradients(
    tiny: Tiny, batch: dict[str, Tensor], causal: bool, cells: int | None
) -> None:
    mine = Recurrent(tiny(block="lstm", causal=causal, lstm_size=cells))
    mask, theirs = batch["attention_mask"], torchs(mine)
    hidden = torch.randn(*mask.shape, 16)
    inputs, same_inputs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()

    lengths = mask.sum(dim=1)
    packed = pack_padded_sequence(same_inputs, lengths, batch_first=True, enforce_sorted=False)
    expected = mine.output(pad_packed_sequence(theirs(packed)[0], batch_first=True)[0])[mask]
    states = mine(inputs, Rows.from_mask(mask))[mask]
    torch.testing.assert_close(states, expected, atol=1e-6, rtol=1e-5)

    weights = torch.randn_like(states)
    (states * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(inputs.grad, same_inputs.grad, atol=1e-6, rtol=1e-5)
    for name, parameter in mine.ahead.lstm.named_parameters():
        gradient = theirs.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-5, rtol=1e-5)


def test_a_state_follows_from_the_one_before_by_the_formulas() -> None:
    reader, inputs = Reader(4, 3, weight_dropout=0.0), torch.randn(1, 6, 4)
    lstm = reader.lstm
    state, cell = torch.zeros(3), torch.zeros(3)
    for token, expected in zip(inputs[0], reader(inputs)[0], strict=True):
        sums = lstm.weight_ih_l0 @ token + lstm.weight_hh_l0 @ state
        i, f, g, o = (sums + lstm.bias_ih_l0 + lstm.bias_hh_l0).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        torch.testing.assert_close(state, expected)


def test_forget_gates_start_open() -> None:
    lstm = Reader(4, 3, weight_dropout=0.0).lstm
    forget = torch.zeros(4, 3).index_fill(0, torch.tensor([1]), 1.0)
    assert torch.equal(lstm.bias_ih_l0 + lstm.bias_hh_l0, forget.flatten())


def test_weight_dropout_drops_recurrent_weights_once_a_batch_and_in_training_only() -> None:
    reader, inputs = Reader(4, 50, weight_dropout=0.5), torch.randn(2, 6, 4)
    inputs[1] = inputs[0]
    torch.manual_seed(3)
    dropped = reader.train()(inputs)
    assert torch.equal(dropped[0], dropped[1])  # the same weights are gone in each sequence

    torch.manual_seed(3)
    weights = reader.weight_dropout(reader.lstm.weight_hh_l0)
    assert 0.4 < (weights == 0).float().mean() < 0.6
    plain = Reader(4, 50, weight_dropout=0.0)
    plain.lstm.load_state_dict(reader.lstm.state_dict() | {"weight_hh_l0": weights.detach()})
    torch.testing.assert_close(dropped, plain(inputs))

    dropped.sum().backward()  # what is dropped gets no gradient
    assert torch.equal(reader.lstm.weight_hh_l0.grad == 0, weights == 0)
    plain.lstm.load_state_dict(reader.lstm.state_dict())
    assert torch.equal(reader.eval()(inputs), plain(inputs))


def test_dropout_of_a_block_is_locked_if_wanted(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    hidden = torch.zeros(3, 7, 16)
    for locked in (True, False):
        config = tiny(block="conv", hidden_dropout_prob=0.5, locked_dropout=locked)
        block = BLOCKS["conv"](config, 0).train()
        block.norm = nn.Identity()
        monkeypatch.setattr(block.sublayer, "forward", lambda hidden, rows: hidden + 1)
        is_dropped = block(hidden)[0] == 0
        assert is_dropped.any()
        assert torch.equal(is_dropped, is_dropped[:, :1].expand_as(is_dropped)) is locked
        assert not torch.equal(is_dropped[0], is_dropped[1])
