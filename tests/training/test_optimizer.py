"""Layer groups: complete, without doubles, rates and decay as the papers say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.optimizer import (
    OptimizerConfig,
    group_rates,
    make_optimizer,
    parameter_groups,
)

TINY: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}


def tiny_pretrainer(**encoder: Any) -> Pretrainer:
    return Pretrainer(Encoder(EncoderConfig(**TINY, **encoder)))


@pytest.mark.parametrize(
    "variant",
    [{}, {"norm_position": "pre"}, {"tie_word_embeddings": False}, {"embedding_size": 8}],
)
def test_each_parameter_is_in_exactly_one_group(variant: dict[str, Any]) -> None:
    module = tiny_pretrainer(**variant)
    groups = parameter_groups(module.layers(), OptimizerConfig())
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(grouped) == len(set(grouped))  # tensors of equal value are not taken for one
    assert set(grouped) == {id(parameter) for parameter in module.parameters()}


def test_groups_are_two_a_layer_whatever_is_frozen() -> None:
    module = tiny_pretrainer()
    names = [group["name"] for group in parameter_groups(module.layers(), OptimizerConfig())]
    layers = ["embeddings", "block_1", "block_2", "block_3", "head"]
    assert names == [name + suffix for name in layers for suffix in ("", ".no_decay")]
    for parameter in module.encoder.parameters():
        parameter.requires_grad = False
    frozen = parameter_groups(module.layers(), OptimizerConfig())
    assert sum(len(group["params"]) for group in frozen) == len(list(module.parameters()))


def test_muon_moves_the_matrices_of_the_blocks_alone() -> None:
    module = tiny_pretrainer(attention_score="bilinear")  # with a weight (H, K, K)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = parameter_groups(module.layers(), OptimizerConfig(optimizer="muon"))
    assert [group["name"] for group in groups[:3]] == [
        "embeddings",
        "embeddings.no_decay",
        "embeddings.muon",
    ]
    ours = {names[id(p)] for g in groups if g["name"].endswith(".muon") for p in g["params"]}
    assert ours == {
        f"encoder.blocks.{block}.{matrix}.weight"
        for block in range(3)
        for matrix in (
            *(f"attention.{name}" for name in ("query", "key", "value", "output")),
            *(f"feedforward.{name}" for name in ("intermediate", "output")),
        )
    }
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in module.parameters())


def take_steps(module: Pretrainer, *optimizers: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def fresh_pretrainer() -> Pretrainer:
    torch.manual_seed(0)
    return tiny_pretrainer()


def assert_same_weights(ours: Pretrainer, theirs: Pretrainer) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


MUON = OptimizerConfig(
    optimizer="muon",
    learning_rate=1e-2,
    rate_decay=2.0,
    weight_decay=0.3,
    muon_momentum=0.8,
    muon_rate_factor=3.0,
)


def test_muon_with_adamw_takes_the_steps_of_torch_s_two_optimizers() -> None:
    ours, theirs = fresh_pretrainer(), fresh_pretrainer()
    take_steps(ours, make_optimizer(ours.layers(), MUON), steps=range(5))
    groups = parameter_groups(theirs.layers(), MUON)
    matrices = [group for group in groups if group["name"].endswith(".muon")]
    assert [group["lr"] for group in matrices] == pytest.approx(
        [0.03 / 2**below for below in range(4, -1, -1)]
    )
    rest = [group for group in groups if not group["name"].endswith(".muon")]
    muon = torch.optim.Muon(matrices, momentum=0.8, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, betas=(0.9, 0.999), eps=1e-6, fused=True)
    take_steps(theirs, muon, adamw, steps=range(5))
    assert_same_weights(ours, theirs)


def test_muon_goes_on_from_its_state_as_if_it_had_not_stopped() -> None:
    whole, cut = fresh_pretrainer(), fresh_pretrainer()
    take_steps(whole, make_optimizer(whole.layers(), MUON), steps=range(6))
    before = make_optimizer(cut.layers(), MUON)
    take_steps(cut, before, steps=range(3))
    after = make_optimizer(cut.layers(), MUON)
    after.load_state_dict(before.state_dict())
    take_steps(cut, after, steps=range(3, 6))
    assert_same_weights(whole, cut)


def test_an_update_of_muon_is_as_large_as_one_of_adamw() -> None:
    """Liu et al., 2025, section 2.2: a root mean square of 0.2 to 0.4, whatever the shape."""
    module = fresh_pretrainer()
    config = OptimizerConfig(
        optimizer="muon", learning_rate=1.0, weight_decay=0.0, muon_rate_factor=1.0
    )
    optimizer = make_optimizer(module.layers(), config)
    for group in optimizer.param_groups:
        if not group["name"].endswith(".muon"):
            continue
        before = [parameter.detach().clone() for parameter in group["params"]]
        take_steps(module, optimizer, steps=range(1))
        for old, new in zip(before, group["params"], strict=True):
            assert 0.1 < (new - old).square().mean().sqrt() < 0.4


def test_biases_and_norms_have_no_decay() -> None:
    module = tiny_pretrainer()
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for group in parameter_groups(module.layers(), OptimizerConfig(weight_decay=0.3)):
        for parameter in group["params"]:
            plain = names[id(parameter)].endswith("bias") or "norm" in names[id(parameter)].lower()
            assert group["weight_decay"] == (0.0 if plain else 0.3), names[id(parameter)]


def test_discriminative_rates_divide_by_the_factor_a_layer() -> None:
    assert group_rates(3, 0.01, 2.6) == pytest.approx([0.01 / 2.6**2, 0.01 / 2.6, 0.01])
    rates = [
        group["peak_lr"]
        for group in parameter_groups(
            tiny_pretrainer().layers(), OptimizerConfig(learning_rate=1.0, rate_decay=2.0)
        )
    ]
    assert rates == [2.0**-4] * 2 + [2.0**-3] * 2 + [2.0**-2] * 2 + [0.5] * 2 + [1.0] * 2


def test_fused_and_plain_adamw_take_the_same_steps() -> None:
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        module = tiny_pretrainer()
        optimizer = make_optimizer(
            module.layers(), OptimizerConfig(learning_rate=1e-2), fused=fused
        )
        for step in range(5):
            generator = torch.Generator().manual_seed(step)
            for parameter in module.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        results.append([parameter.detach().clone() for parameter in module.parameters()])
    for ours, reference in zip(*results, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be .*(above 0|from 1).*, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be .* from 0 to .*, got -1.0"),
        ({"rate_decay": 0.5}, "rate_decay must be a number from 1 to .*, got 0.5"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**setting)


def test_a_step_is_that_of_the_paper_with_each_number_in_its_place() -> None:
    """Loshchilov and Hutter, 2019, algorithm 2, with numbers that no two of can be exchanged."""
    beta1, beta2, epsilon, rate, decay = 0.5, 0.96, 0.3, 0.01, 0.2
    config = OptimizerConfig(
        learning_rate=rate,
        weight_decay=decay,
        adam_beta1=beta1,
        adam_beta2=beta2,
        adam_epsilon=epsilon,
    )
    layer = torch.nn.Linear(3, 2, bias=False)
    optimizer = make_optimizer({"layer": [layer]}, config)
    weight = layer.weight.detach().double()
    first, second = torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    for step in range(1, 4):
        gradient = torch.randn(2, 3, generator=torch.Generator().manual_seed(step))
        layer.weight.grad = gradient.clone()
        optimizer.step()
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        mean, square = first / (1 - beta1**step), second / (1 - beta2**step)
        weight = weight - rate * decay * weight - rate * mean / (square.sqrt() + epsilon)
        torch.testing.assert_close(layer.weight.detach().double(), weight, atol=1e-6, rtol=0)
