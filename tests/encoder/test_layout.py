"""Unpadded tokens: what is computed without padding is what is computed with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from finetune.encoder import Dropout, Encoder, EncoderConfig
from finetune.encoder import layout as layouts
from finetune.encoder.layout import PADDED, Chosen, Padded, Rows, Unpadded, without_padding
from finetune.errors import ConfigError

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
        {"position": "relative", "attention_score": "bilinear"},
        {"position": "alibi", "causal": True},
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


class Replayed:
    """Dropout whose masks are drawn for the padded batch, and taken over by another layout."""

    def __init__(self) -> None:
        self.masks: list[Tensor] = []
        self.layout: Padded | None = None

    def draw(self, inputs: Tensor) -> Tensor:
        """Draw a mask for the padded batch."""
        self.masks.append((torch.rand_like(inputs) > 0.3).float() / 0.7)
        return inputs * self.masks[-1]

    def repeat(self, inputs: Tensor) -> Tensor:
        """Use the masks in the order in which they were drawn, those of the same numbers."""
        mask = self.masks.pop(0)
        if mask.shape != inputs.shape:
            mask = self.of_others(mask, inputs)
        return inputs * mask

    def of_others(self, mask: Tensor, inputs: Tensor) -> Tensor:
        """The mask of the tokens that the other layout has here."""
        if isinstance(self.layout, Unpadded):  # (N, D), or in the last block first tokens alone
            return self.layout.unpad(mask) if inputs.dim() == 2 else mask[..., :1, :]
        return self.layout.rows(mask) if mask.dim() == 4 else self.layout.take(mask)


def test_chosen_tokens_are_the_same_under_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, dropout = Encoder(EncoderConfig.from_dict(SIZES)).train(), Replayed()
    batch = {"input_ids": torch.randint(50, (3, 6)), "attention_mask": MASK}
    positions = torch.tensor([1, 2, 6, 15])
    monkeypatch.setattr(layouts, "MUCH", 1.0)  # with all padding
    monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.draw(inputs))
    every = encoder(batch).last_hidden_state.flatten(0, 1)[positions]
    dropout.layout = Chosen.from_positions(positions, 3, 6)
    monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.repeat(inputs))
    chosen = encoder(batch, positions=positions).last_hidden_state
    assert not dropout.masks
    torch.testing.assert_close(chosen, every, atol=1e-6, rtol=1e-6)


def test_locked_dropout_of_the_tokens_read_is_drawn_for_each_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = Encoder(EncoderConfig.from_dict(SIZES | {"locked_dropout": True})).train()
    shapes, draw = set(), Dropout.forward
    monkeypatch.setattr(
        Dropout, "forward", lambda self, inputs: shapes.add(inputs.shape) or draw(self, inputs)
    )
    batch, positions = {"input_ids": torch.randint(50, (3, 6))}, torch.tensor([1, 7, 13])
    assert encoder(batch, positions=positions).last_hidden_state.shape == (3, 16)
    assert {shape for shape in shapes if len(shape) < 4} == {(3, 1, 16)}


def states_and_gradients(
    encoder: Encoder, batch: dict[str, Tensor], what: dict[str, Any]
) -> tuple[Tensor, dict[str, Tensor]]:
    hidden = encoder(batch, **what).last_hidden_state
    read = hidden if what else hidden * batch["attention_mask"][..., None]
    read.square().sum().backward()
    gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    return read, gradients


WHATS: list[dict[str, Any]] = [
    {},
    {"first_only": True},
    {"positions": MASK.flatten().nonzero().squeeze(1)[[1, 5, 9]]},
    {"positions": MASK.flatten().nonzero().squeeze(1)},  # too many for the last block to choose
]


@pytest.mark.parametrize("what", WHATS, ids=["all", "first", "few", "many"])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"gradient_checkpointing": True},
        {"norm_position": "pre", "position": "rotary", "hidden_act": "geglu"},
        {"attention_score": "additive", "causal": True, "embedding_size": 8},
        {"position": "relative", "local_attention": 2, "global_every": 2},
    ],
    ids=str,
)
def test_training_without_padding_is_the_same_under_the_same_dropout(
    variant: dict[str, object], what: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, dropout = Encoder(EncoderConfig.from_dict(SIZES | variant)).train(), Replayed()
    batch = {"input_ids": torch.randint(50, (3, 6)), "attention_mask": MASK}
    dropout.layout, rows = without_padding(MASK), []
    assert isinstance(dropout.layout, Unpadded)  # 7 of 18 are padding
    encoder.blocks[0].feedforward.register_forward_hook(lambda _, args, out: rows.append(out.shape))
    monkeypatch.setattr(layouts, "MUCH", 1.0)
    if not encoder.config.gradient_checkpointing:  # which computes twice
        monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.draw(inputs))
    else:
        monkeypatch.setattr(Dropout, "forward", lambda _, inputs: inputs)
    expected, expected_gradients = states_and_gradients(encoder, batch, what)
    monkeypatch.setattr(layouts, "MUCH", 0.0)
    if dropout.masks:
        monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.repeat(inputs))
    states, gradients = states_and_gradients(encoder, batch, what)
    assert not dropout.masks
    assert {rows[0], rows[-1]} == {(3, 6, 16), (11, 16)}
    torch.testing.assert_close(states, expected, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-4, rtol=1e-4)


def test_training_without_padding_is_nearly_the_same_in_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    encoder, dropout = Encoder(EncoderConfig.from_dict(SIZES)).train(), Replayed()
    batch = {"input_ids": torch.randint(50, (3, 6)), "attention_mask": MASK}
    dropout.layout, rows = without_padding(MASK), []
    encoder.blocks[0].feedforward.register_forward_hook(lambda _, args, out: rows.append(out.shape))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        monkeypatch.setattr(layouts, "MUCH", 1.0)
        monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.draw(inputs))
        expected, expected_gradients = states_and_gradients(encoder, batch, {})
        monkeypatch.setattr(layouts, "MUCH", 0.0)
        monkeypatch.setattr(Dropout, "forward", lambda _, inputs: dropout.repeat(inputs))
        states, gradients = states_and_gradients(encoder, batch, {})
    assert rows == [(3, 6, 16), (11, 16)]
    torch.testing.assert_close(states, expected, atol=1e-3, rtol=1e-3)
    for name, gradient in expected_gradients.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(gradients[name], gradient, atol=1e-2 * scale, rtol=0.0)


def test_only_training_batches_with_much_padding_are_unpadded() -> None:
    little = torch.ones(3, 6, dtype=torch.bool)
    little[0, 3:] = False
    left = MASK.flip(1)  # the first token is padding
    for mask in (None, little, left, MASK[:, None].expand(3, 6, 6)):
        assert without_padding(mask) is PADDED
    encoder = Encoder(EncoderConfig.from_dict(SIZES))
    batch = {"input_ids": torch.randint(50, (3, 6)), "attention_mask": MASK}
    rows: list[int] = []
    encoder.blocks[0].feedforward.register_forward_hook(
        lambda _, args, out: rows.append(out.shape[:-1].numel())
    )
    encoder.train()(batch)
    encoder(batch, output_hidden_states=True)
    with torch.no_grad():
        encoder(batch)
    encoder.eval()(batch)
    locked = Encoder(EncoderConfig.from_dict(SIZES | {"locked_dropout": True})).train()
    assert locked(batch).last_hidden_state.shape == (3, 6, 16)
    assert rows == [11, 18, 18, 18]


def test_rows_put_each_text_in_front_in_both_directions() -> None:
    mask = torch.tensor([[False, True, True, False, True], [True, False, False, False, False]])
    rows = Rows.from_mask(mask)
    hidden = torch.arange(1.0, 11).view(2, 5, 1)
    assert rows.place(hidden, rows.forward)[..., 0].tolist() == [[2, 3, 5, 0, 0], [6, 0, 0, 0, 0]]
    assert rows.place(hidden, rows.backward)[..., 0].tolist() == [[5, 3, 2, 0, 0], [6, 0, 0, 0, 0]]
    for places in (rows.forward, rows.backward):
        assert torch.equal(rows.take(rows.place(hidden, places), places)[mask], hidden[mask])


def test_rows_of_a_document_mask_are_the_documents() -> None:
    document = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    mask = document.unsqueeze(2) == document.unsqueeze(1)
    mask[1, 4], mask[1, :, 4] = False, False  # padding
    rows = Rows.from_mask(mask)
    hidden = torch.arange(1.0, 11).view(2, 5, 1)
    texts = [[1, 2, 0], [3, 4, 5], [6, 0, 0], [7, 8, 0], [9, 0, 0], [0, 0, 0]]
    assert rows.place(hidden, rows.forward)[..., 0].tolist() == texts
    turned = rows.place(hidden, rows.backward)[..., 0].tolist()
    assert turned[:4] == [[2, 1, 0], [5, 4, 3], [6, 0, 0], [8, 7, 0]]


def test_a_mask_that_hides_single_tokens_of_a_document_is_refused() -> None:
    mask = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    with pytest.raises(ConfigError, match=r"expects an attention_mask \(B, T, T\) that separates"):
        Rows.from_mask(mask)
