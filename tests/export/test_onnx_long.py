"""The example of an exported run reads long texts as the run does."""

from __future__ import annotations

import ast
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import finetune
from finetune.encoder import Encoder
from finetune.export import onnx_score
from finetune.export.model import WholeEnsemble, WholeModel, without_loops
from finetune.export.onnx import export_onnx
from finetune.export.onnx_graph import PACKAGES, Session, check_graph, write_graph
from finetune.export.onnx_long import long_example, templates
from finetune.heads import (
    ALL_POOLINGS,
    Classification,
    HeadConfig,
    MultipleChoice,
    head_logits,
    states_for,
)
from finetune.heads.windows import ONE_VECTOR
from finetune.runs.folder import RunFolder
from finetune.text.features.choices import encode_choices
from finetune.text.features.long_texts import LongConfig
from finetune.text.features.pairs import Features, encode_pairs
from tests.made.commands import Call, Refuses
from tests.made.nets import tiny_config
from tests.made.texts import WORDS, small_tokenizer, write_lines
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


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--window-labels", "document", "--pooling", "attention", "--levels", 2),
        pytest.param(
            ("--window-labels", "document", "--pooling", "concat"), marks=pytest.mark.slow
        ),
    ],
)
def test_example_answers_as_the_run(
    flags: tuple[Any, ...], world: World, call: Call, tmp_path: Path
) -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="needs the extra: pip install 'finetune[onnx]'")
    run, out = tmp_path / "run", tmp_path / "onnx"
    words = ("--max-length", 8, "--no-baselines", "--long", "windows", "--stride", 2, *flags)
    assert call(*world.glue(run, *words)).status == 0
    measured = export_onnx(run, out, int8=True)
    metrics = RunFolder(run).read_results()["metrics"]
    assert measured.scores is not None
    assert measured.scores.fp32 == pytest.approx(metrics, abs=1e-6)
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
        assert row == pytest.approx(right, abs=1e-5)
    axes = json.loads((out / "config.json").read_text())
    of_one = "windows" if flags else "batch"
    assert axes["inputs"]["input_ids"] == [of_one, "length"]
    assert axes["outputs"]["logits"] == [1 if flags else "batch", 2]


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("options", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pooling", ALL_POOLINGS)
def test_windows_of_one_text_are_combined_as_those_of_many(
    pooling: str, causal: bool, options: int | None, levels: int
) -> None:
    if (pooling == "cls" and causal) or (levels == 2 and pooling not in ONE_VECTOR):
        pytest.skip("there is no such head")
    config = tiny_config(causal=causal, initializer_range=0.3)
    torch.manual_seed(1)
    made = HeadConfig(pooling, levels=levels)
    head = Classification(config, made, 2) if options is None else MultipleChoice(config, made, 3)
    model = WholeModel(Encoder(config), head, pools_windows=True)
    shape = (4, 9) if options is None else (4, options, 9)
    ids, types = (torch.randint(size, shape) for size in (config.vocab_size, 2))
    mask = torch.arange(9) < torch.randint(1, 10, shape[:-1]).unsqueeze(-1)
    for given in ((ids, mask.long(), types), (ids, None, types)):
        expected, recorded = model(*given), without_loops(model)(*given)
        torch.testing.assert_close(recorded[0], expected[0], atol=1e-6, rtol=1e-5)
    batch = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    flat = {name: tensor.view(-1, 9) for name, tensor in batch.items()}
    flat["window_of"] = torch.arange(options or 1).repeat(4)
    right = head_logits(head, states_for(head, model.encoder, flat), flat)
    torch.testing.assert_close(model(ids, mask.long(), types)[0], right)


def test_windows_of_a_question_are_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'finetune[onnx]'")
    config = tiny_config(causal=True, initializer_range=0.3)  # concat is BPT3C then
    head = MultipleChoice(config, HeadConfig("concat"), 3)
    model = WholeModel(Encoder(config), head, pools_windows=True)
    write_graph(model, tmp_path / "model.onnx")
    assert check_graph(model, Session(tmp_path / "model.onnx"), None).largest_difference < 1e-5


def test_an_ensemble_reads_windows_together_where_its_members_do(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'finetune[onnx]'")
    config = tiny_config(initializer_range=0.3)
    members = [
        WholeModel(
            Encoder(config), Classification(config, HeadConfig("max"), 2), pools_windows=True
        )
        for _ in range(2)
    ]
    model = WholeEnsemble(members)
    assert (model.pools_windows, model.first_axis) == (True, "windows")
    write_graph(model, tmp_path / "model.onnx")
    assert check_graph(model, Session(tmp_path / "model.onnx"), None).largest_difference < 1e-5


def test_a_second_level_is_not_exported_without_its_windows(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'finetune[onnx]'")
    run, alone = tmp_path / "run", tmp_path / "alone"
    words = ("--max-length", 8, "--long", "windows", "--stride", 2, "--window-labels", "document")
    words += ("--levels", 2, "--no-baselines", "--max-epochs", 1)
    assert call(*world.glue(run, *words)).status == 0
    shutil.copytree(run / "checkpoints" / "best", alone)
    out = tmp_path / "out"
    pattern = ".*levels 2 reads the windows of a text together: .* got a checkpoint alone; .*"
    refuses(pattern, "export", alone, "--format", "onnx", "--out", out)
    assert "export formats: ONNX (transformers has levels 1 only" in call("describe", run).out
    refuses(".*has levels 1 only, got 2; .*", "export", run, "--format", "hf", "--out", out)


@pytest.mark.parametrize("labels", ["window", "document"])
def test_a_graph_scores_questions_of_unequal_options(
    labels: str, runs: dict[str, Path], call: Call, tmp_path: Path
) -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="needs the extra: pip install 'finetune[onnx]'")
    rng, files = random.Random(1), {}
    for split, count in (("train", 16), ("validation", 24)):
        rows = []
        for number in range(count):
            options = rng.sample(WORDS, 3 - number % 2)
            words = rng.choices(WORDS, k=rng.randint(4, 40))
            question = {"question": "which is it", "options": options}
            answer = {"answer": "ABC"[rng.randrange(len(options))]}
            rows.append({"context": " ".join(words), **question, **answer})
        files[split] = write_lines(tmp_path / f"{split}.jsonl", rows)
    run = tmp_path / "run"
    words = ["--train", files["train"], "--validation", files["validation"], "--out", run]
    words += ["--encoder", runs["pretraining"], "--max-length", 16, "--stride", 2, "--no-wandb"]
    words += ["--long", "windows", "--window-labels", labels, "--max-epochs", 1, "--no-baselines"]
    assert call("choose", *words, "--batch-size", 8).status == 0
    measured = export_onnx(run, tmp_path / "onnx", int8=True)
    assert measured.scores is not None
    metrics = RunFolder(run).read_results()["metrics"]
    assert measured.scores.fp32 == pytest.approx(metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("long", "expected"),
    [
        (LongConfig(long="windows"), 2.0),
        (LongConfig(long="windows", window_labels="document"), 1.0),
        (LongConfig(long="head-tail"), 1.0),
    ],
)
def test_a_graph_of_windows_is_scored_with_the_temperature_that_it_lacks(
    long: LongConfig, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(onnx_score.decision, "answers", lambda *given: asked.append(given) or [])
    data = SimpleNamespace(loader=lambda _: [], examples=lambda _: [], features=lambda _: [])
    module = SimpleNamespace(decision={"temperature": 2.0})
    task = SimpleNamespace(long=long, score=lambda _: {})
    monkeypatch.setattr(onnx_score, "in_order", lambda *_: [])
    scorer = SimpleNamespace(data=data, module=module, task=task)
    assert onnx_score.score_graph(scorer, None, "validation") == {}  # type: ignore[arg-type]
    assert asked[0][-1] == {"temperature": expected}


def test_a_graph_never_answers_by_an_option_that_a_question_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(onnx_score.decision, "answers", lambda *_: [])
    monkeypatch.setattr(onnx_score, "in_order", lambda *_: [])
    ids, there = torch.zeros(4, 3, dtype=torch.int64), torch.tensor([[True, True], [True, False]])
    batch = {"input_ids": ids, "token_type_ids": ids, "choices": there, "index": torch.arange(2)}
    data = SimpleNamespace(loader=lambda _: [batch], examples=lambda _: [], features=lambda _: [])
    module = SimpleNamespace(decision={}, outputs=lambda logits, _: seen.append(logits))
    task = SimpleNamespace(long=LongConfig(), sequences_per_example=2, score=lambda _: {})
    scorer = SimpleNamespace(data=data, module=module, task=task)

    def graph(arrays: dict[str, Any]) -> list[Any]:
        return [torch.tensor([[0.0, 5.0]] * len(arrays["input_ids"])).numpy()]

    onnx_score.score_graph(scorer, graph, "validation")  # type: ignore[arg-type]
    assert seen[0].argmax(-1).tolist() == [1, 0]
