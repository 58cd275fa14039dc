"""Probes: a linear classifier on each layer of a frozen encoder.

A probe shows what a linear map can predict from a layer, not what the network uses (Belinkov, 2022,
section 4). Compare with the trivial baseline (the most frequent answer) and with an encoder of the
same shape with random weights, whose layers already distinguish words (`untrained`). An encoder
that was fine-tuned on the same task has seen the examples that its probes are fitted on.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.console.tables import table
from finetune.elementary import TRIVIAL
from finetune.encoder import Encoder
from finetune.errors import ConfigError
from finetune.inspection.layers import check_pooling, layer_names, layer_vectors
from finetune.inspection.mixing import fit_mix
from finetune.jobs.sources import (
    Model,
    Sequences,
    TextChoice,
    drawn,
    open_task,
    without_label,
)
from finetune.metrics.semantics import column_title, shown
from finetune.ranges import MOST_SEED, MOST_STEPS, check_values, within
from finetune.runs.results import summarise
from finetune.task.interface import Answer, Example, Task
from finetune.text.features.pairs import Features
from finetune.training.loop.task_data import TaskData
from finetune.training.randomness import keyed_seed, seed_weights

LIMIT = 10_000
"""Training examples at most; a smaller data set shares its cached states with fine-tuning."""
MIX = "scalar mix"
HELD_OUT = 0.1
"""Fraction of the training examples on which the penalty is chosen."""
PENALTIES = (1.0, 0.1, 0.01, 0.001, 0.0001)
"""Candidates, the strongest first."""


@dataclass(frozen=True)
class ProbeConfig:
    """The settings of probes."""

    pooling: str = "mean"
    """One vector a text: cls, last, mean, max or concat."""
    seeds: tuple[int, ...] = within(0, MOST_SEED, default=(1, 2, 3))
    """Each holds out another tenth of the training examples."""
    limit: int | None = within(1, MOST_STEPS, default=LIMIT)
    """Examples of the training and of the validation split at most."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: The pooling is unknown, or there is no seed.
        """
        check_values(self)
        check_pooling(self.pooling)
        if not self.seeds:
            raise ConfigError("a probe needs at least one seed, got none")


@dataclass(frozen=True)
class _Split:
    """A split of a task, prepared for probes."""

    examples: list[Example]
    features: list[Features]
    sequences: Sequences
    labels: Tensor
    """int64 (N,)."""


def probe(
    model: Model,
    choice: TextChoice,
    config: ProbeConfig,
    **cache: Any,
) -> dict[str, Any]:
    """Probe each layer of an encoder on a task of classes.

    Args:
        model: The encoder; it is not changed.
        choice: Names the task and how much of it is read.
        config: The settings of the probes.
        cache: `caching` and `cache_dir` of the hidden states.

    Returns:
        `task`, `split`, `metric` (the task's headline), `examples`, `trivial` (metrics of that
        baseline); `layers`: for each boundary its `layer`, `name`, the `penalty` of each seed and
        `metrics`, each with mean, deviation and values over seeds; `mix`: the `metrics`,
        the `shares` (mix weights) of the layers and their `centre` of gravity, in the same form.

    Raises:
        ConfigError: The task does not have one class for each text.
    """
    data = open_task(model, choice, windows=False)  # a vector a text
    train, validation = both = _splits(data, choice, config)
    trivial = data.task.score(data.task.baseline_answers(train.examples, validation.examples))
    vectors = [layer_vectors(model, split.sequences, config.pooling, **cache) for split in both]
    by_seed = [_probe_once(seed, train, validation, vectors, data.task) for seed in config.seeds]
    return {
        "task": data.task.name,
        "split": data.task.validation_splits[0],
        "metric": data.task.monitor,
        "pooling": config.pooling,
        "seeds": list(config.seeds),
        "classes": len(data.task.labels),
        "examples": {"train": len(train.labels), "validation": len(validation.labels)},
        TRIVIAL: trivial,
        **_summary(by_seed),
    }


def _splits(data: TaskData, choice: TextChoice, config: ProbeConfig) -> tuple[_Split, _Split]:
    task = data.task
    if (
        task.sequences_per_example != 1
        or not task.labels
        or not task.validation_splits
        or task.fixed_answer
    ):
        raise ConfigError(
            f"{task.name}: a probe needs a task with one class for each text and a validation "
            "split; name one by --task"
        )
    train = _split(data, data.train_split, True, choice, config)
    return train, _split(data, task.validation_splits[0], False, choice, config)


def _split(
    data: TaskData, split: str, training: bool, choice: TextChoice, config: ProbeConfig
) -> _Split:
    features, examples = data.features(split, training=training), data.examples(split)
    if len(features) != len(examples) or not all(isinstance(f.label, int) for f in features):
        raise ConfigError(
            f"{data.task.name}: a probe needs one class for each text of the {split} split; "
            "name another task by --task"
        )
    rows = drawn(len(features), config.limit, choice.seed)
    chosen = [features[row] for row in rows]
    return _Split(
        [examples[row] for row in rows],
        chosen,
        Sequences(f"{data.task.name} {split}", [without_label(feature) for feature in chosen]),
        torch.tensor([feature.label for feature in chosen]),
    )


@dataclass(frozen=True)
class _SeedResult:
    """The scores of one seed's probes."""

    layers: list[dict[str, float]]
    penalties: list[float]
    mix: dict[str, float]
    shares: list[float]
    centre: float


def _probe_once(
    seed: int, train: _Split, validation: _Split, vectors: Sequence[Tensor], task: Task
) -> _SeedResult:
    held_out, classes = hold_out(len(train.labels), seed), len(task.labels)
    fitted = [fit_chosen(layer, train.labels, classes, held_out) for layer in vectors[0]]
    scored = [
        _score(log_probabilities(classifier, layer), validation, task)
        for (classifier, _), layer in zip(fitted, vectors[1], strict=True)
    ]
    penalties = [penalty for _, penalty in fitted]
    penalty = statistics.median_high(penalties)
    mix = fit_mix(vectors[0][:, ~held_out], train.labels[~held_out], classes, penalty)
    return _SeedResult(
        scored,
        penalties,
        _score(mix.logits(vectors[1]), validation, task),
        mix.shares.tolist(),
        mix.centre,
    )


def fit_linear(features: Tensor, labels: Tensor, classes: int, penalty: float) -> Any:
    """Fit mean cross-entropy + penalty / 2 · |weight|² on standardized features; the bias is free.

    Args:
        features: (N, F).
        labels: int64 (N,).
        classes: C.
        penalty: Above 0.

    Returns:
        A classifier of scikit-learn with all C classes.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    inputs, truth = features.double().numpy(), labels.numpy()
    # A class without an example would be left out: it has a mean one, of hardly any weight.
    missing = np.setdiff1d(np.arange(classes), truth)
    weights = np.concatenate([np.ones(len(truth)), np.full(len(missing), 1e-6)])
    inputs = np.concatenate([inputs, np.tile(inputs.mean(0), (len(missing), 1))])
    # Two classes share one vector there, whose halves have half its penalty together.
    strength = (2 if classes == 2 else 1) / (penalty * len(truth))
    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=1e-6, max_iter=1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # then it is near enough
        model.fit(
            inputs,
            np.concatenate([truth, missing]),
            standardscaler__sample_weight=weights,
            logisticregression__sample_weight=weights,
        )
    return model


def fit_chosen(
    features: Tensor, labels: Tensor, classes: int, held_out: Tensor
) -> tuple[Any, float]:
    """Fit with each of `PENALTIES` and choose the one that predicts held-out examples best.

    Args:
        features: (N, F).
        labels: int64 (N,).
        classes: C.
        held_out: True for the examples on which the penalty is chosen, not fitted, bool (N,).

    Returns:
        The classifier with the lowest mean cross-entropy on them, and its penalty.
    """
    inputs, truth = features[~held_out], labels[~held_out]
    fitted = [(fit_linear(inputs, truth, classes, penalty), penalty) for penalty in PENALTIES]

    def loss(candidate: tuple[Any, float]) -> float:
        scores = log_probabilities(candidate[0], features[held_out])
        return float(F.nll_loss(scores, labels[held_out]))

    return min(fitted, key=loss)


def log_probabilities(model: Any, features: Tensor) -> Tensor:
    """Log-probability of each class, (N, F) -> float64 (N, C)."""
    scores = torch.from_numpy(model.decision_function(features.double().numpy()))
    if scores.ndim == 1:  # for two classes scikit-learn returns the score of the second only
        scores = torch.stack([-scores, scores], dim=1) / 2
    return torch.log_softmax(scores, dim=1)


def _summary(by_seed: Sequence[_SeedResult]) -> dict[str, Any]:
    """Mean and deviation over the seeds, for each layer and for the mix."""
    return {
        "layers": [
            {"layer": layer, "name": name}
            | {"penalty": [result.penalties[layer] for result in by_seed]}
            | {"metrics": _over_seeds([result.layers[layer] for result in by_seed])}
            for layer, name in enumerate(layer_names(len(by_seed[0].layers)))
        ],
        "mix": {
            "metrics": _over_seeds([result.mix for result in by_seed]),
            "shares": [
                summarise(list(shares))
                for shares in zip(*(result.shares for result in by_seed), strict=True)
            ],
            "centre": summarise([result.centre for result in by_seed]),
        },
    }


def hold_out(count: int, seed: int) -> Tensor:
    """Draw a tenth of the examples, at least one: True for those, bool (N,).

    Raises:
        ConfigError: There is only one example.
    """
    if count < 2:
        raise ConfigError(f"a probe needs at least two training examples, got {count}")
    rng = np.random.default_rng(keyed_seed(seed, "probe"))
    held_out = torch.zeros(count, dtype=torch.bool)
    held_out[torch.from_numpy(rng.permutation(count)[: max(1, round(HELD_OUT * count))])] = True
    return held_out


def _score(logits: Tensor, split: _Split, task: Task) -> dict[str, float]:
    answers: list[Answer] = task.answers(logits.numpy(), split.examples, split.features)
    return task.score(answers)


def _over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {name: summarise([metrics[name] for metrics in scores]) for name in scores[0]}


def untrained(model: Model, seed: int = 1) -> Model:
    """An encoder of the same shape with random weights, on the same device."""
    device = next(model.encoder.parameters()).device
    with torch.random.fork_rng():
        seed_weights(seed)
        encoder = Encoder(model.encoder.config)
    return Model(model.place, encoder.to(device).eval(), model.tokenizer)


def curve(probed: Sequence[Mapping[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Mean and deviation at each layer and of the mix.

    Args:
        probed: The result of `probe` for each run of a group.
        metric: The metric.

    Returns:
        A summary for each boundary, then that of the mix: over the runs' means where there are
        several runs, otherwise over the seeds of the probes.
    """
    by_run = [
        [*(layer["metrics"] for layer in run["layers"]), run["mix"]["metrics"]] for run in probed
    ]
    if len(probed) == 1:
        return [dict(metrics[metric]) for metrics in by_run[0]]
    return [
        dict(summarise([metrics[metric]["mean"] for metrics in of_layer]))
        for of_layer in zip(*by_run, strict=True)
    ]


def trivial_score(probed: Mapping[str, Any], metric: str) -> float:
    """What the trivial baseline scores, as a result of `probe`, or of an older one, has it."""
    return float(probed["majority" if "majority" in probed else TRIVIAL][metric])


def curve_names(probed: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the points of `curve` for the deepest encoder: its layers and the mix."""
    return [*max(([layer["name"] for layer in run["layers"]] for run in probed), key=len), MIX]


def probe_table(groups: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> str:
    """One line for each layer, one column for each group: mean ± std, and the mix below."""
    firsts = [probed[0] for probed in groups.values()]
    names = curve_names(firsts)
    cells = [
        dict(zip(curve_names(probed), curve(probed, metric), strict=True))
        for probed in groups.values()
    ]
    rows = [[name, *(_cell(metric, column.get(name)) for column in cells)] for name in names]
    trivial = (shown(metric, trivial_score(first, metric), short=True) for first in firsts)
    rows.append(["trivial baseline", *trivial])
    weights = [_mean_weights(probed) for probed in groups.values()]
    for layer, name in enumerate(names[:-1]):
        percents = (
            f"{100 * column[layer]:.1f}" if layer < len(column) else "" for column in weights
        )
        rows.append([f"mix weight of {name} (%)", *percents])
    return table(rows, [f"{firsts[0]['task']}: {column_title(metric)}", *groups])


def _mean_weights(probed: Sequence[Mapping[str, Any]]) -> list[float]:
    """Weight of each layer in the mix, averaged over the runs of a group."""
    by_run = [[weight["mean"] for weight in run["mix"]["shares"]] for run in probed]
    return [statistics.fmean(weights) for weights in zip(*by_run, strict=True)]


def _cell(metric: str, summary: Mapping[str, Any] | None) -> str:
    values = [summary[key] for key in ("mean", "std")] if summary else []
    return " ± ".join(shown(metric, value, short=True) for value in values)
