"""Unfreezing: policies as plans, and what a plan's phase means for the weights.

A policy is a pure function that gives the phases of a run (`plan.py`). Applying a phase is
`requires_grad` and the mode of the modules, and nothing else: the optimizer has all groups from
the first step, and what is frozen has no gradient, so neither its moments nor its weight decay move
it. Frozen parts are in eval mode too. That is a small departure from ULMFiT, which keeps dropout
on; it makes the frozen prefix a constant of each text, which may be computed once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from finetune.console.output import counted
from finetune.errors import ConfigError, nearest
from finetune.ranges import MOST_STEPS, check_values, not_among, within
from finetune.training.optimizer import group_rates
from finetune.training.unfreezing.plan import Phase, Plan, exact, group_names

if TYPE_CHECKING:
    import torch
    from torch import nn

Layers = Mapping[str, Sequence["nn.Module"]]
"""Layer groups by name, lowest first."""


@dataclass
class UnfreezeConfig:
    """Which layers are trained when.

    >>> from finetune import UnfreezeConfig
    >>> unfreezing = UnfreezeConfig("gradual", phase_epochs=0.5)
    >>> unfreezing.schedule_scope
    'run'
    """

    unfreeze: str = field(
        default="all",
        metadata={"instead_of": ("phases",), "offers": lambda: [*POLICIES, "top:2"]},
    )
    """Policy: all, head, gradual (ULMFiT), chain (chain-thaw), lp-ft (head, then all), top:N."""
    phase_epochs: float = within(0, MOST_STEPS, above=True, default=1.0)
    """gradual and chain: epochs per phase (may be fractional); the last phase runs to the end."""
    head_epochs: float = within(0, MOST_STEPS, above=True, default=1.0)
    """lp-ft: epochs in which only the head is trained (may be fractional)."""
    phases: list[str] | None = None
    """Custom phases instead of a policy: GROUP=EPOCHS or LOWEST..HIGHEST=EPOCHS, as head=1."""
    schedule_scope: Literal["run", "phase"] = "run"
    """The learning-rate schedule covers the whole run, or starts again in each phase."""
    thaw_warmup_ratio: float = within(
        0, 1, below=True, default=0.0, hint="choose 0.05 for a twentieth of the run"
    )
    """Fraction of the run in which a newly thawed group's rate rises from 0; 0 = no warm-up."""
    optimizer_state: Literal["keep", "reset"] = "keep"
    """Adam's moments at the start of a phase: keep them, or reset all groups (as fastai does)."""
    frozen_dropout: bool = False
    """Keep dropout on in frozen layers; their hidden states are then not cached."""
    group_rates: list[str] | None = None
    """Custom peak rates: GROUP=RATE or LOWEST..HIGHEST=RATE, as head=1e-3."""

    def __post_init__(self) -> None:
        """Check what can be checked without an encoder.

        Raises:
            ConfigError: The policy is unknown, or a number is out of its range.
        """
        check_values(self)
        if not re.fullmatch(r"top:\d+", self.unfreeze) and self.unfreeze not in POLICIES:
            raise _unknown_policy(self.unfreeze)
        if self.phases is not None and not self.phases:
            raise ConfigError("phases: expected at least one as 'head=1', got none")

    @property
    def policy(self) -> str:
        """What to call the plan: the policy's name, or that the phases are the user's own."""
        return self.unfreeze if self.phases is None else "own phases"


def _unknown_policy(name: str) -> ConfigError:
    if name.startswith("top"):
        return ConfigError(f"unfreeze must be top:N with a whole number N, got '{name}'")
    return not_among("unfreeze", name, [*POLICIES, "top:N"])


def _everything(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """All groups, all the time."""
    return [Phase(range(num_blocks + 2), 0.0, None)]


def _head(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """Feature extraction: the head alone (Peters et al., 2019, section 2)."""
    return [Phase(range(num_blocks + 1, num_blocks + 2), 0.0, None)]


def _gradual(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """The head, then one more group from the top each phase (Howard and Ruder, 2018, 3.3)."""
    last = num_blocks + 1
    groups = [range(lowest, last + 1) for lowest in range(last, -1, -1)]
    return _in_a_row(groups, [config.phase_epochs] * last)


def _chain(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """Chain-thaw: the head, each other group alone from the bottom up, then all at once.

    Felbo et al., 2017, section 3.3: new layers first, then each layer from the first on, then the
    whole network. The paper waits for convergence where this gives each phase its epochs.
    """
    last = num_blocks + 1
    groups = [range(group, group + 1) for group in (last, *range(last))]
    return _in_a_row([*groups, range(last + 1)], [config.phase_epochs] * len(groups))


def _lp_ft(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """Linear probing, then fine-tuning of everything (Kumar et al., 2022, section 3.4)."""
    groups = [range(num_blocks + 1, num_blocks + 2), range(num_blocks + 2)]
    return _in_a_row(groups, [config.head_epochs])


POLICIES: dict[str, Callable[[UnfreezeConfig, int], list[Phase]]] = {
    "all": _everything,
    "head": _head,
    "gradual": _gradual,
    "chain": _chain,
    "lp-ft": _lp_ft,
}
"""Name in a config -> (config, number of blocks) -> phases; and `top:N`."""


def _top(config: UnfreezeConfig, num_blocks: int) -> list[Phase]:
    """The head and the top N blocks, all the time; the embeddings stay frozen."""
    count = int(config.unfreeze.removeprefix("top:"))
    if count > num_blocks:
        raise ConfigError(
            f"unfreeze: expected top:0 to top:{num_blocks}, as the encoder has {num_blocks} "
            f"blocks, got '{config.unfreeze}'; 'all' trains the embeddings too"
        )
    return [Phase(range(num_blocks + 1 - count, num_blocks + 2), 0.0, None)]


def _in_a_row(groups: Sequence[range], lengths: Sequence[float]) -> list[Phase]:
    """Phases one after the other; one without a length runs to the end of the run."""
    bounds = [Fraction(0)]  # exact: ten phases of 0.1 epochs end at 1
    for length in lengths:
        bounds.append(bounds[-1] + exact(length))
    times: list[float | None] = [float(bound) for bound in bounds]
    if len(lengths) < len(groups):
        times.append(None)
    return [
        Phase(trained, start or 0.0, end)
        for trained, start, end in zip(groups, times[:-1], times[1:], strict=True)
    ]


def make_plan(config: UnfreezeConfig, num_blocks: int, max_epochs: float | None) -> Plan:
    """Turn a policy, or the user's own phases, into the plan of a run.

    Args:
        config: Names the policy.
        num_blocks: L, at least 1.
        max_epochs: Epochs of the run, the last one may be a part; None where the clock decides.

    Returns:
        The plan; its last phase reaches to the end of the run.

    Raises:
        ConfigError: A group's name is unknown or out of range; a phase cannot be read; the run has
            fewer epochs than the phases, or more than they cover; or a setting needs to know how
            many epochs the run has and the clock decides.
    """
    if config.phases is not None:
        phases = _own_phases(config.phases, num_blocks)
    elif config.unfreeze in POLICIES:
        phases = POLICIES[config.unfreeze](config, num_blocks)
    else:
        phases = _top(config, num_blocks)
    plan = Plan(tuple(phases), num_blocks + 2)
    _check_length(config, plan, max_epochs)
    return plan


def _own_phases(texts: Sequence[str], num_blocks: int) -> list[Phase]:
    groups, lengths = [], []
    for number, text in enumerate(texts, start=1):
        where = f"phases, number {number}"
        name, sign, epochs = text.partition("=")
        groups.append(_named_groups(name.strip(), num_blocks, where))
        if sign or number < len(texts):  # the last may run to the end
            lengths.append(_positive(epochs, "epochs", text, where))
    return _in_a_row(groups, lengths)


def _named_groups(text: str, num_blocks: int, where: str) -> range:
    """Read `head` or `block_5..head`."""
    names = group_names(num_blocks)
    low, dots, high = (part.strip() for part in text.partition(".."))
    lowest = _group(low, names, where)
    highest = _group(high, names, where) if dots else lowest
    if lowest > highest:
        raise ConfigError(
            f"{where}: expected the lowest group first, '{high}..{low}', got '{text}'"
        )
    return range(lowest, highest + 1)


def _group(name: str, names: Sequence[str], where: str) -> int:
    if name in names:
        return names.index(name)
    if re.fullmatch(r"block_-?\d+", name):
        raise ConfigError(
            f"{where}: '{name}' is out of range, the encoder has "
            f"{counted(len(names) - 2, 'block')}; choose block_1 to {names[-2]}"
        )
    raise ConfigError(f"{where}: unknown group '{name}'; {nearest(name, names)}")


def _positive(number: str, unit: str, text: str, where: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(
            f"{where}: expected GROUP={unit.upper()} with a positive number, got '{text}'"
        )
    return value


def _check_length(config: UnfreezeConfig, plan: Plan, max_epochs: float | None) -> None:
    """See that the run is as long as its phases."""
    last, count = plan.phases[-1], len(plan.phases)
    if max_epochs is None:
        _check_clock(config, plan)
        return
    needed, given = exact(last.start if last.end is None else last.end), exact(max_epochs)
    if given < needed or (last.end is None and given == needed):
        amount = f"more than {last.start:g}" if last.end is None else f"{last.end:g}"
        raise ConfigError(
            f"the {counted(count, 'phase')} of {config.policy} need{'s' * (count == 1)} {amount} "
            f"epochs, got {max_epochs:g}; {_shorter_or_longer(config, plan, max_epochs)}"
        )
    if last.end is not None and given > needed:
        raise ConfigError(
            f"phases: expected them to cover the run, got {last.end:g} of {max_epochs:g} epochs; "
            "leave the epochs of the last phase out, and it runs to the end"
        )


def _shorter_or_longer(config: UnfreezeConfig, plan: Plan, max_epochs: float) -> str:
    """What to change where the epochs do not suffice."""
    last = plan.phases[-1]
    longer = f"set max_epochs to {math.floor(last.start) + 1}"
    if last.end is not None:
        longer = f"set max_epochs to {math.ceil(last.end)}"
        if last.end % 1:
            longer += " and leave the epochs of the last phase out"
    if config.phases is not None:
        return f"{longer}, or shorten the phases"
    if config.unfreeze == "lp-ft":
        return f"{longer}, or head_epochs to {max_epochs / 2:g}"
    shorter = max_epochs / len(plan.phases)
    digits = max(2, 1 - math.floor(math.log10(shorter)))  # two that count, rounded down
    return f"{longer}, or phase_epochs to {math.floor(shorter * 10**digits) / 10**digits:g}"


def _check_clock(config: UnfreezeConfig, plan: Plan) -> None:
    """Under a limit in minutes the epochs of the last phase are not known."""
    if plan.phases[-1].end is not None:
        raise ConfigError(
            "phases: under max_minutes the last phase runs until the time is over; leave its "
            "epochs out"
        )
    per_phase = "schedule_scope: phase" if config.schedule_scope == "phase" else ""
    warm = "thaw_warmup_ratio" if config.thaw_warmup_ratio else ""
    if len(plan.phases) > 1 and (per_phase or warm):
        raise ConfigError(
            f"{per_phase or warm} needs a run whose length in steps is known, got max_minutes; "
            "set max_epochs or max_steps instead"
        )


def group_rates_with(
    names: Sequence[str],
    learning_rate: float,
    rate_decay: float,
    overrides: Sequence[str] | None = None,
) -> dict[str, float]:
    """Peak rate of each group: discriminative rates, some of them replaced by the user's own.

    Args:
        names: All groups, lowest first.
        learning_rate: Rate of the topmost group.
        rate_decay: Each group below has its neighbour's rate divided by this (Howard and Ruder,
            2018, section 3.2: 2.6). Layer-wise decay by a factor ξ (Clark et al., 2020, appendix
            B: 0.8) is 1 / ξ here.
        overrides: `GROUP=RATE` or `LOWEST..HIGHEST=RATE`; later ones win.

    Returns:
        Name → rate.

    Raises:
        ConfigError: A group is unknown or out of range, or a rate is no positive number.
    """
    rates = dict(zip(names, group_rates(len(names), learning_rate, rate_decay), strict=True))
    for text in overrides or ():
        name, _, rate = text.partition("=")
        value = _positive(rate, "rate", text, "group_rates")
        # Later texts overwrite earlier ones: first a range, then its exceptions.
        for group in _named_groups(name.strip(), len(names) - 2, "group_rates"):
            rates[names[group]] = value
    return rates


def owned_parameters(layers: Layers) -> dict[str, list[nn.Parameter]]:
    """The tensors of each group, each in one group: a shared one belongs to the lower group.

    Tensors are distinguished by identity, never by value: fresh biases are all equal.
    """
    seen: set[int] = set()
    owned: dict[str, list[nn.Parameter]] = {}
    for name, modules in layers.items():
        unseen = {id(p): p for module in modules for p in module.parameters() if id(p) not in seen}
        seen |= unseen.keys()
        owned[name] = list(unseen.values())
    return owned


def set_trainable(layers: Layers, groups: range) -> None:
    """Give gradients to the tensors of these groups, and to no others.

    Args:
        layers: Layer groups by name, lowest first.
        groups: Numbers of the trainable groups.
    """
    for number, parameters in enumerate(owned_parameters(layers).values()):
        for parameter in parameters:
            parameter.requires_grad_(number in groups)
            if number not in groups:
                parameter.grad = None  # an optimizer would go on moving what has a gradient left


def set_modes(layers: Layers, groups: range, *, frozen_dropout: bool = False) -> None:
    """Put trainable groups in training mode and frozen ones in eval mode.

    To be called while training, and again after whatever puts the whole model in training mode.

    Args:
        layers: Layer groups by name, lowest first.
        groups: Numbers of the trainable groups.
        frozen_dropout: Leave frozen groups in training mode, except that batch normalisation does
            not gather statistics: those are weights too.
    """
    for number, modules in enumerate(layers.values()):
        for module in modules:
            module.train(number in groups or frozen_dropout)
            if number not in groups:
                for norm in _batch_norms(module):  # they gather statistics without a gradient
                    norm.eval()


def _batch_norms(module: nn.Module) -> Iterator[nn.Module]:
    from torch import nn

    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return (part for part in module.modules() if isinstance(part, kinds))


def reset_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Forget the moments and step counts of all groups, as fastai does at each `freeze_to`."""
    optimizer.state.clear()  # AdamW makes it again, with step counts from 0, at its next step
