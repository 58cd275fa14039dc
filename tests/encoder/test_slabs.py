from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from finetune.encoder import Encoder, EncoderConfig, attention, dropout, slabs
from finetune.encoder.attention import SelfAttention
from finetune.encoder.dropout import DropoutMask, drop_on_cpu
from finetune.encoder.slabs import mix_in_slabs

Tiny = Callable[..., EncoderConfig]
SHAPES = [(2, 3, 5, 7), (1, 2, 9, 9), (3, 2, 1, 6), (4, 1, 8, 3)]
"""B, H, Q and S."""


def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float) -> Tensor:
    logits = query @ key.transpose(-2, -1)
    logits = logits if bias is None else logits + bias
    return drop_on_cpu(logits.softmax(-1), p) @ value


def inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    batch, heads, queries, keys = shape
    sizes = [(batch, queries, heads, 4), (batch, keys, heads, 4), (batch, keys, heads, 4)]
    # Heads in the midst, as projections have them: not in one piece.
    return [torch.randn(size, dtype=dtype).transpose(1, 2).requires_grad_() for size in sizes]


def bias_of(kind: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor | None:
    batch, heads, queries, keys = shape
    if kind == "none":
        return None
    if kind == "learned":
        return torch.randn(heads, queries, keys, dtype=dtype, requires_grad=True)
    bias = torch.zeros(batch, 1, 1, keys, dtype=dtype)
    bias[0, ..., keys // 2 + 1 :] = -torch.inf
    return bias


@pytest.fixture(params=[1, 16, 50, 1 << 18])
def _slab_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "SLAB", request.param)
    monkeypatch.setattr(dropout, "CHUNK", 16)


@pytest.mark.usefixtures("_slab_size")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["none", "padding", "learned"])
def test_outputs_and_gradients_are_those_of_the_plain_path_with_the_same_seed(
    shape: tuple[int, ...], kind: str
) -> None:
    arguments, bias = inputs(shape), bias_of(kind, shape)
    learned = [*arguments, *([bias] if bias is not None and bias.requires_grad else [])]
    results = []
    for mix in (plain, mix_in_slabs):
        torch.manual_seed(3)
        mixed = mix(*arguments, bias, 0.3)  # type: ignore[operator]
        results.append([mixed, *torch.autograd.grad(mixed.sin().sum(), learned)])
        results[-1].append(torch.get_rng_state())  # what is drawn next is the same too
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["padding", "learned"])
def test_gradients_are_those_of_differences(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slabs, "SLAB", 16)
    shape = (2, 2, 3, 5)
    arguments, bias = inputs(shape, torch.float64), bias_of(kind, shape, torch.float64)

    def seeded(*arguments: Tensor) -> Tensor:
        torch.manual_seed(3)
        return mix_in_slabs(*arguments[:3], bias if kind == "padding" else arguments[3], 0.3)

    assert torch.autograd.gradcheck(
        seeded, [*arguments, *([bias] if kind == "learned" else [])], fast_mode=True
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 16, 50, 1 << 18])
def test_slabs_cover_all_weights_once_and_in_order(
    shape: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slabs, "SLAB", size)
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    parts = [numbers[slab] for slab in slabs.slabs(torch.Size(shape), shape[3])]
    assert torch.equal(torch.cat([part.flatten() for part in parts]), numbers.flatten())
    assert max(part.numel() for part in parts) <= max(size, shape[3])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("position", ["learned", "relative", "alibi", "rotary"])
def test_an_encoder_trains_as_on_the_plain_path(
    tiny: Tiny, batch: dict[str, Tensor], position: str, autocast: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = tiny(position=position, attention_probs_dropout_prob=0.2, hidden_dropout_prob=0.2)
    encoder, gradients = Encoder(config), []
    for many in (1, 1 << 30):
        monkeypatch.setattr(slabs, "MANY", many)
        monkeypatch.setattr(dropout, "MANY", many)
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = encoder(batch).last_hidden_state.float().sin().mean()
        gradients.append(torch.autograd.grad(loss, [*encoder.parameters()], allow_unused=True))
    tolerance = 1e-2 if autocast else 1e-6
    for one, other in zip(*gradients, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_slabs_are_taken_where_there_are_many_weights_and_only_in_training(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, calls = SelfAttention(tiny(attention_probs_dropout_prob=0.5)), []
    monkeypatch.setattr(
        attention, "mix_in_slabs", lambda *given: calls.append(1) or mix_in_slabs(*given)
    )
    hidden = torch.randn(2, 7, 16)
    layer(hidden)
    assert not calls
    monkeypatch.setattr(slabs, "MANY", 2 * 2 * 7 * 7)
    layer(hidden)
    assert calls == [1]
    layer.eval()(hidden)
    assert calls == [1]


def kept_bytes(compute: Callable[[], Tensor]) -> int:
    """What the backward pass of a computation holds, each storage once."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = compute()
    assert output.requires_grad
    return sum(sizes.values())


def test_no_weights_are_kept_for_the_backward_pass() -> None:
    arguments, weights = inputs((2, 2, 64, 64)), 2 * 2 * 64 * 64 * 4
    assert kept_bytes(lambda: plain(*arguments, None, 0.1)) > 3 * weights
    assert kept_bytes(lambda: mix_in_slabs(*arguments, None, 0.1)) < weights / 4


@pytest.mark.parametrize("count", [1, 7, 8, 41, 100])
def test_bits_decide_as_numbers_do(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "CHUNK", 16)
    ones = torch.ones(count, requires_grad=True)
    torch.manual_seed(3)
    expected = drop_on_cpu(ones, 0.4)
    monkeypatch.setattr(dropout, "MANY", 1)
    torch.manual_seed(3)
    thinned = drop_on_cpu(ones, 0.4)
    assert torch.equal(thinned, expected)
    assert torch.equal(torch.autograd.grad(thinned.sum(), ones)[0], expected)
    torch.manual_seed(3)
    kept = DropoutMask.draw(count, 0.4)
    part = kept.factors(count // 3, torch.Size([count - count // 3]), torch.float32)
    assert torch.equal(part, expected[count // 3 :])


def test_a_second_gradient_is_refused_instead_of_being_wrong() -> None:
    arguments = inputs((1, 2, 3, 5))
    first = torch.autograd.grad(
        mix_in_slabs(*arguments, None, 0.3).sin().sum(), arguments, create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate twice"):
        sum(one.square().sum() for one in first).backward()  # type: ignore[union-attr]


def test_gradients_of_many_slabs_keep_their_digits_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = [part.detach() for part in inputs((1, 1, 512, 512))]
    errors = []
    for size in (1 << 18, 2 * 512):  # one slab, and 256
        monkeypatch.setattr(slabs, "SLAB", size)
        gradients = []
        for dtype in (torch.float32, torch.bfloat16):
            given = [part.bfloat16().to(dtype).requires_grad_() for part in exact]
            torch.manual_seed(3)
            mixed = mix_in_slabs(*given, None, 0.1)
            gradients.append(torch.autograd.grad(mixed.sum(), given))
        errors.append([(b - a).norm() / a.norm() for a, b in zip(*gradients, strict=True)])
    assert all(many < 2 * one + 1e-3 for one, many in zip(*errors, strict=True))
