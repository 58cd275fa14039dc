"""From a head's outputs to decided answers, by numbers that were chosen on a validation split.

A checkpoint keeps these numbers as its `decision`: the temperature by which logits are divided
before they become probabilities, and what the task's own `tune` chose, such as thresholds. Whoever
answers with a checkpoint does it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.metrics.calibration import (
    best_temperature,
    calibration_error,
    confidences,
    negative_log_likelihood,
)
from finetune.metrics.classes import indicators
from finetune.task.interface import Answer, Example, Outputs, Task
from finetune.text.features.pairs import Features

TEMPERATURE = "temperature"
"""The number of a decision by which logits are divided; 1 where there is none."""


def answers(
    task: Task,
    outputs: Outputs,
    examples: Sequence[Example],
    features: Sequence[Features],
    decision: Mapping[str, float],
) -> list[Answer]:
    """Read the answers off a head's outputs, with calibrated probabilities, and decide them.

    Args:
        task: Whose answers they are.
        outputs: As for `Task.answers`.
        examples: The N examples.
        features: What `Task.features` made of them.
        decision: Numbers that `tune` chose; {} for the outputs as they are.
    """
    outputs = task.merged(outputs, features)
    made = task.answers(calibrated(task, outputs, decision), examples, features)
    return task.decide(made, decision)


def calibrated(task: Task, outputs: Outputs, decision: Mapping[str, float]) -> Outputs:
    """The outputs, divided by the temperature where they are logits of the task's labels."""
    temperature = decision.get(TEMPERATURE, 1.0)
    if temperature == 1 or not _are_logits(task, outputs):
        return outputs
    return outputs.astype(np.float64) / temperature  # in which different logits stay different


def tune(
    task: Task,
    outputs: Outputs,
    examples: Sequence[Example],
    features: Sequence[Features],
) -> dict[str, float]:
    """Choose the numbers of a decision on the labelled examples of a validation split.

    Returns:
        The temperature of the highest likelihood, and what the task tunes on the probabilities
        that it gives; no temperature where a label is missing, or every answer is right.
    """
    temperature, outputs = None, task.merged(outputs, features)
    if (targets := _targets(task, outputs, examples)) is not None:
        temperature = best_temperature(outputs, targets)
    chosen = {} if temperature is None else {TEMPERATURE: temperature}
    return chosen | task.tune(task.answers(calibrated(task, outputs, chosen), examples, features))


def trust(
    task: Task,
    outputs: Outputs,
    examples: Sequence[Example],
    decision: Mapping[str, float],
    features: Sequence[Features] = (),
) -> dict[str, Any]:
    """What probabilities are worth before and after they were divided by the temperature.

    Args:
        task: Whose answers they are.
        outputs: As for `Task.answers`.
        examples: The N examples.
        decision: Numbers that `tune` chose.
        features: What `Task.features` made of the examples, where they may have windows.

    Returns:
        `nll` (mean negative log-likelihood, nats) and `ece` (expected calibration error of 15 bins,
        a fraction), each with `before` and `after`; {} where there are no probabilities or labels.
    """
    outputs = task.merged(outputs, features)
    targets = _targets(task, outputs, examples)
    if targets is None:
        return {}
    both = {"before": outputs, "after": calibrated(task, outputs, decision)}
    return {
        "nll": {when: negative_log_likelihood(z, targets) for when, z in both.items()},
        "ece": {when: calibration_error(*confidences(z, targets)) for when, z in both.items()},
    }


def _are_logits(task: Task, outputs: Outputs) -> bool:
    """Whether there is a logit for each of the task's labels or options."""
    return outputs.ndim == 2 and outputs.shape[1] == len(task.labels) > 0


def _targets(task: Task, outputs: Outputs, examples: Sequence[Example]) -> npt.NDArray[Any] | None:
    """The right class of each example (N,), or indicators (N, C).

    None where one is not known, or where an output is no number: the weights have diverged.
    """
    labels: list[Any] = [example.label for example in examples]
    if not labels or not _are_logits(task, outputs) or len(outputs) != len(labels):
        return None
    if not (outputs < np.inf).all():  # minus infinity stands for an option that is not there
        return None
    if all(isinstance(label, tuple) for label in labels):
        return indicators(labels, task.labels)
    number = {name: index for index, name in enumerate(task.labels)}
    if not all(isinstance(label, str) and label in number for label in labels):
        return None
    return np.array([number[label] for label in labels])
