from __future__ import annotations

import pytest
import torch

from finetune.encoder import Dropout
from finetune.encoder.dropout import LockedDropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_dropped_share_is_p_and_the_mean_stays(p: float) -> None:
    outputs = Dropout(p)(torch.ones(400_000))
    share = (outputs == 0).double().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / 400_000) ** 0.5)
    assert outputs.mean().item() == pytest.approx(1.0, abs=0.02)
    assert outputs.unique().numel() == 2


@pytest.mark.parametrize("p", [0.1, 0.25, 1 / 3])
def test_scale_times_the_rounded_keep_probability_is_one(p: float) -> None:
    kept_value = Dropout(p)(torch.ones(1000)).max().item()
    assert kept_value * (1 - round(p * 65536) / 65536) == pytest.approx(1.0, rel=1e-6)


def test_all_four_draws_of_a_random_number_are_uniform() -> None:
    # A draw of 64 bits decides four elements; one with a fixed sign bit would drop no fourth one.
    outputs = Dropout(0.3)(torch.ones(400_000)).view(-1, 4)
    shares = (outputs == 0).double().mean(dim=0)
    assert torch.allclose(shares, torch.tensor(0.3).double(), atol=0.008)


def test_neighbours_are_dropped_independently() -> None:
    dropped = (Dropout(0.5)(torch.ones(400_000)) == 0).double().view(-1, 8)
    correlations = torch.corrcoef(dropped.T) - torch.eye(8)
    assert correlations.abs().max() < 5 / 50_000**0.5


def test_a_seed_repeats_the_mask_and_the_generators_state_resumes_it() -> None:
    dropout, inputs = Dropout(0.5), torch.ones(3, 5, 7)
    torch.manual_seed(1)
    first = dropout(inputs)
    state = torch.get_rng_state()
    second = dropout(inputs)
    torch.manual_seed(1)
    assert torch.equal(dropout(inputs), first)
    torch.set_rng_state(state)
    assert torch.equal(dropout(inputs), second)
    assert not torch.equal(first, second)


def test_the_gradient_passes_where_the_value_did() -> None:
    inputs = torch.randn(5, 9, requires_grad=True)
    outputs = Dropout(0.4)(inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert torch.allclose(outputs, inputs * inputs.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (2, 3, 5)])
def test_any_shape_and_dtype_are_kept(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    outputs = Dropout(0.5)(torch.ones(shape, dtype=dtype))
    assert (outputs.shape, outputs.dtype) == (torch.Size(shape), dtype)


def test_in_evaluation_or_with_rate_zero_the_input_comes_back() -> None:
    inputs = torch.randn(4)
    assert Dropout(0.5).eval()(inputs) is inputs
    assert Dropout(0.0)(inputs) is inputs


def test_the_rate_is_shown() -> None:
    assert repr(Dropout(0.5)) == "Dropout(p=0.5)"


@pytest.mark.gpu
def test_a_gpu_drops_at_the_same_rate() -> None:
    outputs = Dropout(0.1)(torch.ones(400_000, device="cuda"))
    assert (outputs == 0).double().mean().item() == pytest.approx(0.1, abs=0.003)


def test_locked_dropout_drops_the_same_numbers_at_all_tokens_of_a_sequence() -> None:
    thinned = LockedDropout(0.5).train()(torch.ones(4, 9, 64))
    assert torch.equal(thinned, thinned[:, :1].expand_as(thinned))
    assert not torch.equal(thinned[0], thinned[1])
    assert set(thinned.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(LockedDropout(0.5).eval()(thinned), thinned)
