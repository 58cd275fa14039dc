"""A sweep's file: which runs it names, and what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import ConfigError
from finetune.runs.sweeps import (
    LONGEST_NAME,
    Sweep,
    combinations,
    command_words,
    folder_name,
    read_sweep,
)

RATES = "learning_rate: {min: 1.0e-5, max: 1.0e-3, scale: log}"


def runs_of(folder: Path, text: str) -> dict[str, dict[str, Any]]:
    file = folder / "sweep.yaml"
    file.write_text(f"command: glue rte\n{text}", encoding="utf-8")
    return combinations(*read_sweep(file))


def random(folder: Path, parameters: str, *, runs: int = 20, seed: int = 1) -> list[dict[str, Any]]:
    text = f"method: random\nruns: {runs}\nseed: {seed}\nparameters: {{{parameters}}}\n"
    return list(runs_of(folder, text).values())


def test_a_grid_has_every_combination_and_seeds_are_no_runs(tmp_path: Path) -> None:
    text = "parameters: {pooling: [cls, mean], --learning-rate: [1.0e-3, 0.01], seed: [1, 2]}"
    runs = runs_of(tmp_path, text)
    assert list(runs) == [
        "learning_rate=0.001,pooling=cls",
        "learning_rate=0.01,pooling=cls",
        "learning_rate=0.001,pooling=mean",
        "learning_rate=0.01,pooling=mean",
    ]
    expected = {"pooling": "mean", "learning_rate": 0.01, "seeds": [1, 2]}
    assert list(runs.values())[-1] == expected


def test_the_places_of_parameters_in_the_file_change_no_run(tmp_path: Path) -> None:
    values = ("pooling: [cls, mean, max]", RATES)
    assert random(tmp_path, ", ".join(values)) == random(tmp_path, ", ".join(values[::-1]))
    texts = ("parameters: {a: [1, 2], b: [3]}", "parameters: {b: [3], a: [1, 2]}")
    assert runs_of(tmp_path, texts[0]) == runs_of(tmp_path, texts[1])


def test_draws_are_different_runs_and_more_of_them_continue_the_fewer(tmp_path: Path) -> None:
    parameters = f"pooling: [cls, mean, max], {RATES}"
    fewer, more = (random(tmp_path, parameters, runs=count) for count in (5, 20))
    assert more[:5] == fewer
    assert len({folder_name(values) for values in more}) == 20
    assert random(tmp_path, parameters, seed=2) != more


def test_the_draw_of_a_parameter_does_not_depend_on_the_others(tmp_path: Path) -> None:
    alone = random(tmp_path, RATES)
    beside = random(tmp_path, f"weight_decay: {{min: 0, max: 1.0}}, {RATES}")
    rates = [[run["learning_rate"] for run in runs] for runs in (alone, beside)]
    assert rates[0] == rates[1]


def test_draws_are_spread_over_their_range(tmp_path: Path) -> None:
    parameters = f"{RATES}, mask_rate: {{min: 0.1, max: 0.5}}, batch_size: {{min: 8, max: 11}}"
    runs = random(tmp_path, parameters, runs=400)
    rates, masked, sizes = (
        np.array([run[name] for run in runs])
        for name in ("learning_rate", "mask_rate", "batch_size")
    )
    assert np.quantile(np.log10(rates), [0, 0.5, 1]) == pytest.approx([-5, -4, -3], abs=0.2)
    assert np.quantile(masked, [0, 0.5, 1]) == pytest.approx([0.1, 0.3, 0.5], abs=0.04)
    assert np.bincount(sizes)[8:].tolist() == pytest.approx([100] * 4, abs=35)
    assert all(type(run["batch_size"]) is int for run in runs)


def test_all_combinations_of_lists_can_be_drawn(tmp_path: Path) -> None:
    runs = random(tmp_path, "pooling: [cls, mean], dropout: [0, 0.1]", runs=4)
    assert {(run["pooling"], run["dropout"]) for run in runs} == {
        (pooling, dropout) for pooling in ("cls", "mean") for dropout in (0, 0.1)
    }


def test_a_folder_has_a_safe_name_and_another_one_for_other_values() -> None:
    paths = [folder_name({"encoder": place}) for place in ("runs/a", "runs-a")]
    assert len(set(paths)) == 2
    long = [folder_name({"tags": "x" * 500 + end}) for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(name) <= LONGEST_NAME for name in long)
    assert all(re.fullmatch(r"[\w.=,:+-]+", name) for name in paths + long)
    assert folder_name({}) == "all"


def test_a_sweep_of_seeds_alone_has_one_run(tmp_path: Path) -> None:
    assert runs_of(tmp_path, "parameters: {seed: [1, 2, 3]}") == {"all": {"seeds": [1, 2, 3]}}


def test_the_command_may_begin_with_finetune() -> None:
    assert command_words(Sweep("finetune glue rte --tags 'a b'")) == [
        *("glue", "rte", "--tags", "a b")
    ]


WRONG = {
    "": "parameters: expected at least one setting with its values, got none",
    "parameters: {}": "parameters: expected at least one setting with its values, got none",
    "parameters: {pooling: []}": "parameters: pooling: expected a list of values, or min and max, "
    "got an empty list",
    "parameters: {pooling: cls}": ".*expected a list of values, or min and max, got cls",
    "parameters: {seed: {min: 1, max: 3}}": "parameters: seed: expected a list of values, got .*",
    "parameters: {pooling: [cls, cls]}": "parameters: pooling: cls is given twice; leave one out",
    "parameters: {mask-rate: [1], mask_rate: [1]}": "parameters: mask_rate is given twice; .*",
    "parameters: {out: [a, b]}": "parameters: out is not allowed to vary; each run has a folder .*",
    "parameters: {dry-run: [true]}": "parameters: dry_run is not allowed to vary; .*",
    "parameters: {seeds: [1, 2]}": r"parameters: seeds: write seed: \[1, 2, 3\]; each run .*",
    "parameters: {validation: [a.csv, b.csv]}": "parameters: validation is not allowed to vary: "
    "runs would be scored on other rows, .*",
    "parameters: {dropout: {min: 0, max: 1}}": ".*dropout: a grid has lists of values, got min .*",
    "method: random\nparameters: {dropout: [0]}": "runs: expected a number with method: random, .*",
    "runs: 3\nparameters: {dropout: [0]}": "runs: expected none with method: grid, got 3; .*",
    "method: random\nruns: 3\nparameters: {dropout: [0, 1]}": "runs: 3 of 2 combinations cannot .*",
    "method: bayes\nparameters: {dropout: [0]}": "method: expected one of grid, random, got .*",
    "metod: grid\nparameters: {dropout: [0]}": "unknown setting 'metod'; did you mean 'method'.*",
    "parameters: {dropout: {min: 1, max: 1}}": ".*expected numbers as min and max, .* got 1 and 1",
    "parameters: {dropout: {min: 0, max: a}}": ".*expected numbers as min and max, .* got 0 and a",
    "parameters: {dropout: {low: 0}}": "parameters: dropout: unknown key 'low'; choose one of .*",
    "parameters: {dropout: {min: 0, max: 1, scale: log}}": ".*min above 0, got log and 0",
    "parameters: {dropout: {min: 1, max: 2, scale: ln}}": ".*expected the scale linear.*got ln .*",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text.replace("\n", " ") or "nothing")
def test_what_is_wrong_is_said_in_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        runs_of(tmp_path, text)
    file = re.escape(str(tmp_path / "sweep.yaml"))
    assert re.fullmatch(f"{file}: {WRONG[text]}", str(error.value)), error.value


def test_too_few_different_draws_end(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runs: 20 different combinations could not be drawn"):
        random(tmp_path, "batch_size: {min: 1, max: 3}")


@pytest.mark.parametrize("content", ["- 1\n", "parameters: {a: [1]}\n", "command: [glue, rte]\n"])
def test_a_file_without_a_command_in_text_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match="expected a sweep with a command in text"):
        read_sweep(file)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("glue rte --out runs/x", "command: --out is not allowed; each run has a folder"),
        (
            "glue rte --choose-on-half",
            "command: --choose-on-half is not allowed; the sweep decides",
        ),
        ("glue rte 'x", "command: no closing quotation; close it"),
        ("finetune", "command: expected a command such as glue rte, got no word"),
    ],
)
def test_a_command_that_cannot_be_swept_is_refused(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        command_words(Sweep(command))
