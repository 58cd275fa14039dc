"""Attention by cumulative lengths: what it computes is what is computed with padding.

A CPU has no such kernel. Attention of one sequence after the other stands in its place here; on a
GPU the kernel itself is tested.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import varlen as torch_varlen

from finetune.encoder import Encoder, EncoderConfig, varlen
from finetune.encoder.cache import Cache
from finetune.encoder.varlen import Varlen, has_kernel

TEXTS = torch.arange(6) < torch.tensor([[6], [1], [4]])
DOCUMENT = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
DOCUMENTS = DOCUMENT.unsqueeze(2) == DOCUMENT.unsqueeze(1)
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class Kernel:
    """What stands in the kernel's place, and counts how often it is asked."""

    calls = 0
    is_there = True

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bounds: Tensor,
        longest: int,
        *,
        scale: float,
        causal: bool,
    ) -> Tensor:
        """Torch's own attention, of one sequence after the other."""
        self.calls += 1
        assert bounds.dtype == torch.int32
        assert len(query) == int(bounds[-1])
        mixed = []
        for start, end in pairwise(bounds.tolist()):
            assert 0 < end - start <= longest
            rows = (states[start:end].transpose(0, 1) for states in (query, key, value))
            one = F.scaled_dot_product_attention(*rows, is_causal=causal, scale=scale)
            mixed.append(one.transpose(0, 1))
        return torch.cat(mixed)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A machine that has the kernel, in whatever precision."""
    kernel = Kernel()
    monkeypatch.setattr(varlen, "has_kernel", lambda hidden: kernel.is_there)
    monkeypatch.setattr(varlen, "attend", kernel.attend)
    return kernel


def make(**changes: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder(EncoderConfig.from_dict(SIZES | changes)).train()


def batch_of(mask: Tensor) -> dict[str, Tensor]:
    batch = {"input_ids": torch.randint(1, 50, (3, 6)), "attention_mask": mask}
    if mask.dim() == 3:  # positions start again with each document
        first = torch.searchsorted(DOCUMENT, DOCUMENT.contiguous())
        batch["position_ids"] = torch.arange(6) - first
    return batch


def states_and_gradients(
    encoder: Encoder, batch: dict[str, Tensor], **wanted: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """The states that are read, and the gradients of their mean square."""
    states = encoder(batch, **wanted).last_hidden_state
    mask = batch["attention_mask"]
    if not wanted and mask.dim() == 2:
        states = states[mask]
    states.square().mean().backward()
    gradients = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    return states.detach(), gradients


def check_same(encoder: Encoder, kernel: Kernel, mask: Tensor, **wanted: Any) -> None:
    batch = batch_of(mask)
    kernel.is_there = False
    expected, expected_gradients = states_and_gradients(encoder, batch, **wanted)
    kernel.is_there = True
    states, gradients = states_and_gradients(encoder, batch, **wanted)
    assert kernel.calls >= 2
    torch.testing.assert_close(states, expected, atol=1e-6, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-5)


VARIANTS = [
    {},
    {"causal": True},
    {"position": "rotary", "norm_position": "pre", "hidden_act": "geglu"},
    {"attention_score": "bilinear", "position": "sinusoidal", "gradient_checkpointing": True},
]


@pytest.mark.parametrize("mask", [TEXTS, DOCUMENTS], ids=["texts", "documents"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_states_and_gradients_are_those_with_padding(
    variant: dict[str, Any], mask: Tensor, kernel: Kernel
) -> None:
    check_same(make(**variant), kernel, mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wanted", ["first token", "few tokens", "most tokens"])
@pytest.mark.parametrize("mask", [TEXTS, DOCUMENTS], ids=["texts", "documents"])
def test_the_tokens_that_a_head_reads_are_the_same(
    mask: Tensor, wanted: str, causal: bool, kernel: Kernel
) -> None:
    real = (TEXTS if mask is TEXTS else torch.ones_like(TEXTS)).flatten().nonzero().squeeze(1)
    what: dict[str, Any] = {"positions": real.flip(0)[: 4 if wanted == "few tokens" else 10]}
    if wanted == "first token":
        what = {"first_only": True}
    check_same(make(causal=causal, position="rotary"), kernel, mask, **what)


def test_linear_layers_see_real_tokens_alone(kernel: Kernel) -> None:
    encoder, rows = make(), []
    for block in encoder.blocks:
        block.feedforward.register_forward_hook(lambda _, args, out: rows.append(len(out)))
    encoder(batch_of(TEXTS))
    encoder(batch_of(TEXTS), positions=torch.tensor([0, 6]))
    assert rows == [11, 11, 11, 2]


def test_evaluation_goes_by_sequence_whatever_the_dropout(kernel: Kernel) -> None:
    encoder = make(attention_probs_dropout_prob=0.1).eval()
    batch = batch_of(TEXTS)
    with torch.no_grad():
        states = encoder(batch).last_hidden_state
        assert kernel.calls == 2
        kernel.is_there = False
        expected = encoder(batch).last_hidden_state
    torch.testing.assert_close(states, expected * TEXTS[..., None], atol=1e-6, rtol=1e-5)
    encoder.prefix(batch, 0)  # runs no block


def test_a_frozen_part_in_eval_mode_goes_by_sequence_beside_one_that_drops(kernel: Kernel) -> None:
    encoder = make(attention_probs_dropout_prob=0.1)
    encoder.blocks[0].eval()
    hidden = encoder.prefix(batch_of(TEXTS), 1)
    assert kernel.calls == 1
    encoder.suffix(hidden, TEXTS, 1)
    encoder(batch_of(TEXTS))
    assert kernel.calls == 1


MASKS = {
    "texts": TEXTS,
    "first token hidden": TEXTS & (torch.arange(18).view(3, 6) > 0),
    "no documents": DOCUMENTS.tril(),
}


@pytest.mark.parametrize(
    ("changes", "mask", "wanted"),
    [
        ({"attention_probs_dropout_prob": 0.1}, "texts", {}),
        ({"attention_score": "additive"}, "texts", {}),
        ({"position": "alibi"}, "texts", {}),
        ({"position": "relative"}, "texts", {}),
        ({"local_attention": 2}, "texts", {}),
        ({"locked_dropout": True}, "texts", {}),
        ({"block": "lstm"}, "texts", {}),
        ({"num_attention_heads": 4}, "texts", {}),  # heads of 4
        ({"hidden_size": 528}, "texts", {}),  # heads of 264
        ({}, "none", {}),
        ({}, "first token hidden", {}),
        ({}, "no documents", {}),
        ({}, "texts", {"output_hidden_states": True}),
        ({}, "texts", {"output_attentions": True}),
        ({"causal": True}, "texts", {"cache": "new"}),
    ],
    ids=str,
)
def test_what_the_kernel_does_not_do_is_computed_with_padding(
    changes: dict[str, Any], mask: str, wanted: dict[str, Any], kernel: Kernel
) -> None:
    encoder, batch = make(**changes), batch_of(TEXTS)
    batch["attention_mask"] = MASKS.get(mask, TEXTS)
    if mask == "none":
        del batch["attention_mask"]
    states = []
    for kernel.is_there in (True, False):
        torch.manual_seed(1)  # of dropout
        more = {"cache": Cache(2)} if wanted.get("cache") else wanted
        states.append(encoder(batch, **more).last_hidden_state)
    assert kernel.calls == 0
    torch.testing.assert_close(*states, atol=0, rtol=0)


def test_a_graph_that_is_recorded_is_computed_with_padding(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    make()(batch_of(TEXTS))
    assert kernel.calls == 0


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "is_there"),
    [
        ("cuda", torch.bfloat16, 8, True),
        ("cuda", torch.float16, 9, True),
        ("cuda", torch.float32, 9, False),
        ("cuda", torch.bfloat16, 7, False),
        ("cpu", torch.bfloat16, 9, False),
        ("mps", torch.float16, 9, False),
    ],
)
def test_the_kernel_is_there_on_recent_gpus_in_half_precision(
    device: str,
    dtype: torch.dtype,
    capability: int,
    is_there: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    hidden: Any = SimpleNamespace(device=torch.device(device), dtype=dtype)
    assert has_kernel(hidden) is is_there
    if device == "cuda":
        hidden.dtype = torch.float32  # what autocast makes of it counts
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: dtype)
        assert has_kernel(hidden) is is_there
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert not has_kernel(hidden)


def test_a_batch_of_one_token_is_a_sequence() -> None:
    layout = Varlen.of(torch.tensor([[True, False]]), causal=False)
    assert layout is not None
    assert layout.bounds.tolist() == [0, 1]


@pytest.mark.parametrize("causal", [False, True])
def test_torch_takes_what_its_kernel_is_given(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device `meta`, where shapes and arguments are checked and nothing is computed."""
    given: dict[str, Any] = {}
    original = torch_varlen.varlen_attn
    monkeypatch.setattr(
        torch_varlen,
        "varlen_attn",
        lambda *args, **more: given.update(more) or original(*args, **more),
    )
    rows = [
        torch.empty(11, 2, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for _ in range(3)
    ]
    bounds = torch.empty(4, dtype=torch.int32, device="meta")
    query, key, value = rows
    mixed = varlen.attend(query, key, value, bounds, 6, scale=0.5, causal=causal)
    mixed.sum().backward()
    assert mixed.shape == (11, 2, 8)
    assert given == {"scale": 0.5, "window_size": (-1, 0 if causal else -1)}
    assert all(one.grad is not None and one.grad.shape == one.shape for one in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", [TEXTS, DOCUMENTS], ids=["texts", "documents"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_kernel_of_a_gpu_gives_the_states_of_the_padded_path(
    variant: dict[str, Any], mask: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = make(**variant).cuda()
    batch = {name: tensor.cuda() for name, tensor in batch_of(mask).items()}
    calls: list[int] = []
    attend = varlen.attend
    monkeypatch.setattr(
        varlen, "attend", lambda *args, **more: calls.append(1) or attend(*args, **more)
    )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        states, gradients = states_and_gradients(encoder, batch)
        assert len(calls) >= 2
        monkeypatch.setattr(varlen, "has_kernel", lambda hidden: False)
        expected, expected_gradients = states_and_gradients(encoder, batch)
    assert_near(states, expected)
    for name, gradient in expected_gradients.items():
        assert_near(gradients[name], gradient)


def assert_near(one: Tensor, other: Tensor) -> None:
    """To the eight bits of bfloat16, in the mean of all numbers."""
    apart = (one.float() - other.float()).norm()
    assert apart <= 0.02 * other.float().norm() + 1e-6
