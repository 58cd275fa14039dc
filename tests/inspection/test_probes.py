from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.errors import ConfigError
from finetune.inspection import Model, ProbeConfig, TextChoice, probe
from finetune.inspection.probes import (
    PENALTIES,
    curve,
    curve_names,
    fit_chosen,
    fit_linear,
    hold_out,
    log_probabilities,
    probe_table,
    untrained,
)


def probed(model: Model, data: Path, **changes: Any) -> dict[str, Any]:
    choice = TextChoice(task="glue/sst2", data=str(data), max_length=16)
    config = ProbeConfig(**{"seeds": (1, 2), **changes})
    return probe(model, choice, config)


def test_each_layer_is_scored_as_the_task_scores(model: Model, data: Path) -> None:
    found = probed(model, data)
    assert (found["task"], found["split"], found["metric"]) == (
        "glue/sst2",
        "validation",
        "accuracy",
    )
    assert found["examples"] == {"train": 400, "validation": 100}
    assert [layer["name"] for layer in found["layers"]] == ["embeddings", "block 1", "block 2"]
    first = found["layers"][0]["metrics"]["accuracy"]
    assert len(first["values"]) == len(found["layers"][0]["penalty"]) == 2
    # Whether a word is there can be read off the mean of the embeddings.
    assert first["mean"] > found["trivial"]["accuracy"] + 0.05
    shares = [share["mean"] for share in found["mix"]["shares"]]
    assert sum(shares) == pytest.approx(1)


def test_same_seeds_give_the_same_numbers_and_others_do_not(model: Model, data: Path) -> None:
    few = {"limit": 60}
    assert probed(model, data, **few) == probed(model, data, **few)
    others = [probed(model, data, seeds=(seed,), **few)["layers"] for seed in (3, 4)]
    assert others[0] != others[1]


def test_limit_draws_examples(model: Model, data: Path) -> None:
    found = probed(model, data, limit=50)
    assert found["examples"] == {"train": 50, "validation": 50}


def test_held_out_examples_are_a_tenth() -> None:
    held_out = hold_out(100, seed=1)
    assert int(held_out.sum()) == 10
    assert not torch.equal(held_out, hold_out(100, seed=2))
    assert int(hold_out(3, 1).sum()) == 1
    with pytest.raises(ConfigError, match="at least two training examples, got 1"):
        hold_out(1, 1)


def test_untrained_encoder_has_the_same_shape_and_other_weights(model: Model) -> None:
    other = untrained(model)
    assert other.encoder.config == model.encoder.config
    assert not other.encoder.training
    weights = [one.encoder.blocks[0].attention.query.weight for one in (model, other)]
    assert not torch.equal(*weights)
    assert torch.equal(weights[1], untrained(model).encoder.blocks[0].attention.query.weight)


def result(means: list[float], mix: float) -> dict[str, Any]:
    def metrics(mean: float) -> dict[str, Any]:
        return {"accuracy": {"mean": mean, "std": 0.01, "values": [mean]}}

    names = ["embeddings", *(f"block {depth}" for depth in range(1, len(means)))]
    return {
        "task": "glue/sst2",
        "trivial": {"accuracy": 0.5},
        "layers": [
            {"layer": number, "name": name, "metrics": metrics(mean)}
            for number, (name, mean) in enumerate(zip(names, means, strict=True))
        ],
        "mix": {"metrics": metrics(mix), "shares": [{"mean": 1 / len(means)} for _ in means]},
    }


def test_error_bars_are_over_runs_where_there_are_several() -> None:
    group = [result([0.5, 0.6], 0.7), result([0.6, 0.8], 0.7)]
    assert curve_names(group) == ["embeddings", "block 1", "scalar mix"]
    over_runs = curve(group, "accuracy")
    assert over_runs[1]["mean"] == pytest.approx(0.7)
    assert over_runs[1]["std"] == pytest.approx(0.2 / 2**0.5)
    assert curve(group[:1], "accuracy")[1]["std"] == 0.01


def test_table_has_room_for_encoders_of_other_depths() -> None:
    groups = {"a": [result([0.5, 0.6], 0.7)], "b": [result([0.5, 0.6, 0.75], 0.8)]}
    lines = probe_table(groups, "accuracy").splitlines()
    assert lines[0].split() == ["glue/sst2:", "accuracy", "(%)", "a", "b"]
    assert lines[4].split() == ["block", "2", "75.0", "±", "1.0"]
    assert lines[5].split() == ["scalar", "mix", "70.0", "±", "1.0", "80.0", "±", "1.0"]
    assert lines[6].split() == ["trivial", "baseline", "50.0", "50.0"]
    assert lines[-1].split() == ["mix", "weight", "of", "block", "2", "(%)", "33.3"]


def test_task_without_classes_is_refused(model: Model, data: Path) -> None:
    choice = TextChoice(task="glue/stsb", data=str(data), max_length=16)
    with pytest.raises(ConfigError, match="glue/stsb: a probe needs a task with one class"):
        probe(model, choice, ProbeConfig())


def test_wrong_words_are_refused(model: Model, data: Path) -> None:
    with pytest.raises(ConfigError, match="--pooling must .*, got 'meen'; did you mean 'mean'"):
        ProbeConfig(pooling="meen")
    with pytest.raises(ConfigError, match="at least one seed"):
        ProbeConfig(seeds=())
    choice = TextChoice(data=str(data))
    with pytest.raises(ConfigError, match=r"made-up: .* name a task by --task glue/sst2"):
        probe(model, choice, ProbeConfig())
    for task in ("glue", "classify/own"):
        with pytest.raises(ConfigError, match=f"task '{task}': expected a family and a name"):
            probe(model, replace(choice, task=task), ProbeConfig())
    with pytest.raises(ConfigError, match=r"max_length \(99\) must not exceed"):
        probe(model, replace(choice, task="glue/sst2", max_length=99), ProbeConfig())


def narrow(count: int = 300, width: int = 20, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Features that vary a thousand times as much along some axes as along others."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    stretched = torch.randn(count, width, generator=generator) * torch.logspace(1, -2, width)
    labels = stretched[:, :classes] + 4 * torch.randn(count, classes, generator=generator)
    return stretched @ turn + 3, labels.argmax(1)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_no_step_from_the_classifier_lowers_the_penalized_loss(
    penalty: float, classes: int
) -> None:
    features, labels = narrow(classes=classes)
    model = fit_linear(features, labels, classes, penalty)
    inputs = (features.double() - features.double().mean(0)) / features.double().std(
        0, correction=0
    )
    coefficients = torch.from_numpy(model[-1].coef_)  # (C, F); of two classes their difference
    weight = torch.cat([-coefficients, coefficients]) / 2 if classes == 2 else coefficients
    wrong = log_probabilities(model, features).exp() - F.one_hot(labels, classes)  # (N, C)
    slope = wrong.T @ inputs / len(labels) + penalty * weight
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=2e-5, rtol=0)


def test_feature_that_never_changes_counts_as_zero() -> None:
    features, labels = narrow()
    wider = torch.cat([features, torch.full((len(features), 2), 7.0)], dim=1)
    of_wider, of_plain = (fit_linear(one, labels, 3, 0.01) for one in (wider, features))
    assert abs(of_wider[-1].coef_[:, -2:]).max() == 0
    expected = log_probabilities(of_plain, features)
    torch.testing.assert_close(log_probabilities(of_wider, wider), expected, atol=1e-4, rtol=1e-4)


def test_penalty_is_the_one_that_held_out_examples_want() -> None:
    features, labels = narrow()
    held_out = torch.arange(len(labels)) % 4 == 0

    def loss(penalty: float) -> float:
        model = fit_linear(features[~held_out], labels[~held_out], 3, penalty)
        return float(F.nll_loss(log_probabilities(model, features[held_out]), labels[held_out]))

    assert fit_chosen(features, labels, 3, held_out)[1] == min(PENALTIES, key=loss)


@pytest.mark.parametrize("known", [1, 3])
def test_class_that_no_example_has_gets_a_low_score(known: int) -> None:
    features, labels = narrow()
    scores = log_probabilities(fit_linear(features, labels % known, 4, 0.01), features)
    assert scores.shape == (300, 4)
    assert int(scores.argmax(1).max()) < known
