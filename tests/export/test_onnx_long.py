"""The example of an exported run reads long texts as the run does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import finetune
from finetune.export import onnx_score
from finetune.export.onnx import export_onnx
from finetune.export.onnx_graph import PACKAGES
from finetune.export.onnx_long import long_example, templates
from finetune.text.features.choices import encode_choices
from finetune.text.features.long_texts import LongConfig
from finetune.text.features.pairs import Features, encode_pairs
from tests.made.commands import Call, Refuses
from tests.made.texts import small_tokenizer
from tests.made.world import World

OURS = small_tokenizer()
LONG = [
    LongConfig(long="windows", stride=2),
    LongConfig(long="windows", stride=0, max_windows=2),
    LongConfig(long="head-tail"),
]
TEXTS = ["the cat", "a dog ran to the one red cat who has it", "it " * 30, "", "who"]
LENGTH = 16


def functions(code: str, long: LongConfig) -> Any:
    """What the example defines, without its files."""
    names: dict[str, Any] = {
        "tokenizer": OURS.backend,
        "config": {"max_length": LENGTH},
        "template": templates(OURS),
        "long": vars(long),
    }
    exec(code[code.index("def ids_of") : code.index("\ntext")], names)
    return names["sequences"]


def rows(features: list[Features]) -> list[tuple[list[int], list[int]]]:
    return [(list(one.input_ids), list(one.token_type_ids)) for one in features]


@pytest.mark.parametrize("long", LONG)
def test_sequences_are_those_of_the_run(long: LongConfig) -> None:
    sequences = functions(long_example("classification", None), long)
    assert [row for text in TEXTS for row in sequences(text)] == rows(
        encode_pairs(OURS, TEXTS, None, LENGTH, long)
    )
    pairs = [(a, b) for a in TEXTS for b in TEXTS]
    firsts, seconds = zip(*pairs, strict=True)
    assert [row for pair in pairs for row in sequences(*pair)] == rows(
        encode_pairs(OURS, firsts, seconds, LENGTH, long)
    )
    of_options = functions(long_example("choice", 2), long)
    for options in (["who", "a dog"], ["it " * 12, "who"], ["it " * 30, "a"]):
        for passage in TEXTS:
            assert of_options(passage, options) == rows(
                encode_choices(OURS, [passage], [options], LENGTH, long)
            )


def test_example_answers_as_the_run(world: World, call: Call, tmp_path: Path) -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="needs the extra: pip install 'finetune[onnx]'")
    run, out = tmp_path / "run", tmp_path / "onnx"
    words = ("--max-length", 8, "--no-baselines", "--long", "windows", "--stride", 2)
    assert call(*world.glue(run, *words)).status == 0
    export_onnx(run, out)
    texts = ["the cat sees the good dog and a bird", "a bad tree", "good " * 20]
    code = (out / "example.py").read_text()
    (line,) = [line for line in code.splitlines() if line.startswith("texts = ")]
    code = code.replace(line, f"texts = {texts}").replace("print(", "print(calibrated.tolist());(")
    (out / "example.py").write_text(code)
    told = [sys.executable, "-W", "error", str(out / "example.py")]
    done = subprocess.run(told, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    model = finetune.load(run)
    expected = [list(row["probabilities"].values()) for row in model.predict(texts)]
    for row, right in zip(ast.literal_eval(done.stdout), expected, strict=True):
        assert row == pytest.approx(right, abs=1e-4)


def test_a_run_that_pools_windows_is_refused(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'finetune[onnx]'")
    run = tmp_path / "run"
    words = ("--max-length", 8, "--long", "windows", "--stride", 2, "--window-labels", "document")
    assert call(*world.glue(run, *words, "--no-baselines", "--max-epochs", 1)).status == 0
    out = tmp_path / "out"
    refuses(".*window_labels document.*", "export", run, "--format", "onnx", "--out", out)


@pytest.mark.parametrize(("long", "kept"), [("windows", 2.0), ("head-tail", 1.0)])
def test_a_graph_of_windows_is_scored_with_the_temperature_that_it_lacks(
    long: str, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(onnx_score.decision, "answers", lambda *given: asked.append(given) or [])
    data = SimpleNamespace(loader=lambda _: [], examples=lambda _: [], features=lambda _: [])
    module = SimpleNamespace(decision={"temperature": 2.0})
    task = SimpleNamespace(long=LongConfig(long=long), score=lambda _: {})
    monkeypatch.setattr(onnx_score, "in_order", lambda *_: [])
    scorer = SimpleNamespace(data=data, module=module, task=task)
    assert onnx_score.score_graph(scorer, None, "validation") == {}  # type: ignore[arg-type]
    assert asked[0][-1] == {"temperature": kept}
