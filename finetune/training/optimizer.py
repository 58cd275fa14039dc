"""Layer groups -> the optimizer's groups: a rate for each layer, no decay on biases and norms.

Every parameter is in exactly one named group from the first step; freezing is `requires_grad` and
never touches the groups, so the number of groups cannot change between a checkpoint and its
resumption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from finetune.ranges import check_values, within

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

OptimizerName = Literal["adamw", "muon"]
_MUON = ".muon"
"""How the names of the groups that Muon moves end."""


@dataclass
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter, 2019) or Muon, with a learning rate per layer group.

    >>> from finetune import OptimizerConfig
    >>> optimizer = OptimizerConfig(learning_rate=1e-4, rate_decay=2.6)
    >>> optimizer.weight_decay
    0.01
    """

    learning_rate: float = within(
        0, 1000, above=True, default=1e-4, hint="try 1e-3 for a small encoder"
    )
    """Peak learning rate of the top layer group."""
    weight_decay: float = within(0, 1000, default=0.01)
    """Weight decay; biases and normalization weights are excluded."""
    rate_decay: float = within(1, 1000, default=1.0, hint="ULMFiT uses 2.6, 1 means one rate")
    """Factor between the rates of neighbouring layer groups (ULMFiT: 2.6; 1 = same rate)."""
    adam_beta1: float = within(0, 1, below=True, default=0.9)
    """Decay of the running average of gradients."""
    adam_beta2: float = within(0, 1, below=True, default=0.999)
    """Decay of the running average of squared gradients."""
    adam_epsilon: float = within(0, 1, default=1e-6)
    """Constant added to the denominator (BERT: 1e-6)."""
    optimizer: OptimizerName = "adamw"
    """adamw, or muon for the matrices of the blocks and adamw for all other weights."""
    muon_momentum: float = within(0, 1, below=True, default=0.95)
    """muon: decay of the running average of gradients."""
    muon_rate_factor: float = within(0, 1000, above=True, default=4.0)
    """muon: learning rate of the matrices, as a multiple of that of the other weights."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A number lies outside its range.
        """
        check_values(self)


def group_rates(count: int, learning_rate: float, rate_decay: float) -> list[float]:
    """Peak rates from the lowest group to the topmost (Howard and Ruder, 2018, section 3.2).

    Args:
        count: Number of layer groups, embeddings and head included.
        learning_rate: Rate of the topmost group.
        rate_decay: Each group below has its neighbour's rate divided by this.

    Returns:
        One rate a group, lowest group first.
    """
    return [learning_rate / rate_decay ** (count - 1 - group) for group in range(count)]


def parameter_groups(
    layers: Mapping[str, Sequence[nn.Module]],
    config: OptimizerConfig,
    peaks: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """The optimizer's groups: two a layer, with decay and without; for Muon a third.

    Args:
        layers: Layer groups by name, lowest first.
        config: Rates and decay.
        peaks: Peak rate of each layer by name, in place of those of the config.

    Returns:
        Groups with `name`, `layer`, `params`, `lr`, `peak_lr` and `weight_decay`. A tensor that two
        layers share (tied embeddings) belongs to the lower one. Empty groups stay: their number
        depends on the layers alone.
    """
    rates = group_rates(len(layers), config.learning_rate, config.rate_decay)
    if peaks is not None:
        rates = [peaks[layer] for layer in layers]
    seen: set[int] = set()  # identities, as fresh biases are equal by value
    groups = []
    for number, ((layer, modules), rate) in enumerate(zip(layers.items(), rates, strict=True)):
        decayed, plain = _split_by_decay(modules, seen)
        parts = [("", decayed, config.weight_decay, rate), (".no_decay", plain, 0.0, rate)]
        if config.optimizer == "muon":
            is_hidden = 0 < number < len(layers) - 1  # neither embeddings nor head
            matrices = [p for p in decayed if is_hidden and p.ndim == 2]
            rest = [p for p in decayed if not is_hidden or p.ndim != 2]
            parts[0] = ("", rest, config.weight_decay, rate)
            parts.append((_MUON, matrices, config.weight_decay, rate * config.muon_rate_factor))
        for suffix, parameters, decay, peak in parts:
            # `peak_lr` is what the schedule multiplies in each step; `lr` is overwritten by it.
            groups.append(
                {"name": layer + suffix, "layer": layer, "params": parameters}
                | {"lr": peak, "peak_lr": peak, "weight_decay": decay}
            )
    return groups


def _split_by_decay(
    modules: Sequence[nn.Module], seen: set[int]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices with decay, vectors (biases, norm weights) without; `seen` are identities."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in (p for module in modules for p in module.parameters()):
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        (decayed if parameter.ndim > 1 else plain).append(parameter)
    return decayed, plain


def make_optimizer(
    layers: Mapping[str, Sequence[nn.Module]],
    config: OptimizerConfig,
    *,
    fused: bool = True,
    peaks: Mapping[str, float] | None = None,
) -> Optimizer:
    """The optimizer that the config names, over the layer groups.

    Args:
        layers: Layer groups by name, lowest first.
        config: Which one, rates, decay and moments.
        fused: One AdamW kernel over all tensors (ten times faster than the loop on a CPU). Off
            where a gradient scaler must clip (fp16).
        peaks: Peak rate of each layer by name, in place of those of the config.

    Returns:
        The optimizer; its groups carry `name` and `peak_lr`.
    """
    from torch.optim import AdamW

    groups = parameter_groups(layers, config, peaks)
    adamw = AdamW(
        [group for group in groups if not group["name"].endswith(_MUON)],
        lr=config.learning_rate,  # without effect: each group states its own
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=fused,
    )
    if config.optimizer == "adamw":
        return adamw
    from finetune.training.muon import MuonWithAdamW

    return MuonWithAdamW(groups, adamw, config.muon_momentum)
