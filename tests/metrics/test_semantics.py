"""What metrics mean: one table, which every metric of a run is in, and nobody else has one."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from finetune.metrics import METRICS, span_scores
from finetune.metrics.semantics import (
    DEFAULT,
    MEANINGS,
    TOKEN_ACCURACIES,
    Better,
    axis_title,
    best_index,
    chance_level,
    column_title,
    goodness,
    headline,
    known,
    label,
    meaning,
    shown,
)
from tasks.glue.table import GLUE
from tasks.own.label_kinds import REGRESSION
from tasks.own.options import ChoiceTask
from tasks.own.text_scores import METRICS_OF, report_of

ROOT = Path(__file__).parents[2]
SPANS = [
    {"prediction": "", "null_odds": 1.0, "answers": []},
    {"prediction": "cat", "null_odds": -1.0, "answers": [{"text": "cat"}]},
]


def reported() -> Iterator[str]:
    """Every metric that a task of ours or a pretraining reports."""
    yield from METRICS
    yield from (name for row in GLUE.values() for name in row.metrics)
    yield from (name for metrics in METRICS_OF.values() for name in metrics)
    yield from report_of(REGRESSION, [{"prediction": 1.0, "label": 2.0}], [])
    yield from span_scores(SPANS, "2.0")
    yield ChoiceTask.monitor
    yield from ("loss", "perplexity", *TOKEN_ACCURACIES)


@pytest.mark.parametrize("metric", sorted(set(reported())))
def test_a_metric_that_is_reported_has_a_row(metric: str) -> None:
    row = known(metric)
    assert row is not None
    assert meaning(f"validation_mismatched/{metric}") is row
    assert row.percent or row.better != "higher"  # the scores of ours are all fractions


@pytest.mark.parametrize(
    ("name", "better", "percent"),
    [
        ("val/loss", "lower", False),
        ("val/perplexity", "lower", False),
        ("mean_squared_error", "lower", False),
        ("masked_accuracy", "higher", True),
        ("best_f1", "higher", True),
        ("best_f1_threshold", None, False),
        ("matthews_correlation", "higher", True),
        ("gloss", "higher", True),  # no loss: words count, not letters
        ("invented", "higher", True),
    ],
)
def test_a_name_means_what_its_last_words_mean(
    name: str, better: Better | None, percent: bool
) -> None:
    assert (meaning(name).better, meaning(name).percent) == (better, percent)


def test_a_name_without_a_row_has_the_stated_default() -> None:
    assert known("invented") is None
    assert meaning("invented") is DEFAULT


@pytest.mark.parametrize("metric", MEANINGS)
def test_the_best_of_several_is_the_first_that_no_other_is_better_than(metric: str) -> None:
    values = [0.5, 0.2, 0.9, 0.2, 0.9]
    lower = MEANINGS[metric].better == "lower"
    assert best_index(metric, values) == (1 if lower else 2)
    assert (goodness(metric, 0.9) > goodness(metric, 0.2)) is not lower


def test_the_headline_is_the_first_that_is_no_setting() -> None:
    assert headline(["best_f1_threshold", "f1", "accuracy"]) == "f1"
    assert headline({"loss": 2.0, "masked_accuracy": 0.3}) == "loss"
    assert headline([]) is None
    assert headline(["exact_match", "f1", "best_f1"]) == "f1"


@pytest.mark.parametrize("choices", [1, 2, 4])
def test_guessing_has_the_value_of_its_definition(choices: int) -> None:
    probabilities = [1 / choices] * choices
    assert chance_level("accuracy", choices) == probabilities[0]
    loss = chance_level("val/loss", choices)
    assert loss == -sum(p * math.log(p) for p in probabilities)
    assert chance_level("perplexity", choices) == pytest.approx(math.exp(loss))
    assert chance_level("pearson", choices) == 0.0
    assert chance_level("subset_accuracy", choices) is None


@pytest.mark.parametrize(
    ("metric", "value", "long", "short"),
    [
        ("accuracy", 0.91267, "91.27", "91.3"),
        ("accuracy", -0.00001, "0.00", "0.0"),
        ("val/loss", 2.34567, "2.3457", "2.346"),
        ("best_f1_threshold", -3.25, "-3.2500", "-3.250"),
    ],
)
def test_a_value_is_shown_in_percent_or_plain(
    metric: str, value: float, long: str, short: str
) -> None:
    assert (shown(metric, value), shown(metric, value, short=True)) == (long, short)


def test_a_difference_has_its_sign() -> None:
    differences = (0.0123, 0.0, -0.0123)
    assert [shown("f1", d, signed=True) for d in differences] == ["+1.23", "0.00", "-1.23"]


def test_titles_say_the_unit() -> None:
    assert [column_title("macro_f1"), column_title("loss")] == ["macro_f1 (%)", "loss"]
    assert label("matthews_correlation") == "matthews correlation"
    assert axis_title("val/exact_match") == "Validation exact match, percent"
    assert axis_title("train/loss") == "Training loss"


def test_asking_what_a_metric_means_waits_for_no_library() -> None:
    code = "import sys, finetune.metrics.semantics; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not {"numpy", "torch", "evaluate"} & set(done.stdout.split())


TELLING = ("is_share", "no_share", "lower_is_better", "higher_is_better")
"""Names of tables and flags that say what a metric means."""


def tables_in(source: str) -> list[int]:
    """Lines of a source that decide by themselves what a metric means."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if _decides(node)]


def _decides(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            return name.lower().startswith(TELLING)
        case ast.FunctionDef(name=name):
            return name.lower().startswith(TELLING)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return {"loss", "perplexity"} <= _texts(items)
        case ast.Dict(keys=keys, values=values) if all(isinstance(v, ast.Constant) for v in values):
            return {"loss", "perplexity"} <= _texts(keys)
        case ast.Call(func=ast.Attribute(attr="endswith"), args=arguments):
            return bool(MEANINGS.keys() & _texts([*ast.walk(ast.List(arguments))]))
    return False


def _texts(nodes: Sequence[ast.AST | None]) -> set[object]:
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


@pytest.mark.parametrize(
    "source",
    [
        'NO_SHARES = ("loss", "perplexity")',
        'def is_share(metric): return not metric.endswith("x")',
        'if metric.endswith("threshold"): pass',
        'lower = metric.endswith(("loss", "error"))',
        'MODES = {"loss": "min", "perplexity": "min", "f1": "max"}',
        "train(higher_is_better=True)",
    ],
)
def test_a_second_table_would_be_seen(source: str) -> None:
    assert tables_in(source) == [1, *([1] if source.startswith("NO_SHARES") else [])]


def test_nobody_else_says_what_a_metric_means() -> None:
    sources = [file for folder in ("finetune", "tasks") for file in (ROOT / folder).rglob("*.py")]
    tables = {file: tables_in(file.read_text(encoding="utf-8")) for file in sources}
    owner = ROOT / "finetune" / "metrics" / "semantics.py"
    assert {file: lines for file, lines in tables.items() if lines and file != owner} == {}
