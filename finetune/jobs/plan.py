"""The plan of a fine-tuning run: made, shown, and handed to the module before it trains."""

from __future__ import annotations

from collections.abc import Mapping

from finetune.runs.folder import say
from finetune.runs.settings import FitRun
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.task_data import TaskData
from finetune.training.optimizer import OptimizerConfig
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Pace
from finetune.training.unfreezing.plan_table import Row, plan_rows, plan_table
from finetune.training.unfreezing.policies import group_rates_with, make_plan, owned_parameters
from finetune.training.unfreezing.rates import RatePlan


def put_plan(run: FitRun, module: FineTuner, data: TaskData) -> list[Row]:
    """Make the plan that the settings name, and let the module follow it.

    Args:
        run: The settings.
        module: Gets the phases and the peak rate of each group.
        data: Says how many batches an epoch has.

    Returns:
        A row a phase, as plain data.

    Raises:
        ConfigError: The policy, a group or a phase is not there, or the run is too short.
    """
    length = run.length.or_default()
    accumulate = run.trainer.accumulate_grad_batches
    batches = data.batches_for(run.trainer.devices)
    steps = length.max_steps
    if length.max_epochs is not None:
        steps = length.max_epochs * -(-batches // accumulate)
    pace = Pace(batches, accumulate, steps)
    config, layers = run.unfreezing, module.layers()
    plan = make_plan(config, module.encoder.config.num_hidden_layers, pace.epochs)
    pace.check(plan)
    rates = RatePlan(plan, pace, run.schedule, config.schedule_scope, config.thaw_warmup_ratio)
    optimizer: OptimizerConfig = run.optimizer
    peaks = group_rates_with(
        list(layers), optimizer.learning_rate, optimizer.rate_decay, config.group_rates
    )
    module.phases, module.peak_rates = Phases(rates, config), peaks
    owned = owned_parameters(layers)
    counts = {name: sum(p.numel() for p in tensors) for name, tensors in owned.items()}
    return plan_rows(rates, peaks, counts)


def show_plan(run: FitRun, rows: list[Row], kept: Mapping[int, str]) -> None:
    """Print the plan, unless everything is trained all the time and nobody asked.

    Args:
        run: The settings.
        rows: The plan.
        kept: Boundary -> size of what is cached of its prefix.
    """
    if run.dry_run or len(rows) > 1 or rows[0]["boundary"] > 0:
        say(plan_table(rows, run.unfreezing.policy, kept))
