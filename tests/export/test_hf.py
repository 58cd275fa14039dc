"""Exported runs in `transformers`: its Auto classes load them and give the same logits, to 1e-5."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)
from transformers.pipelines import SUPPORTED_TASKS

from finetune.checkpoints.folder import load_checkpoint
from finetune.checkpoints.hf import read_hf
from finetune.encoder import Encoder
from finetune.export.hf import export_hf
from finetune.heads import MaskedLM
from finetune.jobs.prediction import load
from tests.export.conftest import MAX_LENGTH, TEXTS

CLASSES: dict[str, Any] = {
    "classification": AutoModelForSequenceClassification,
    "multi_label": AutoModelForSequenceClassification,
    "regression": AutoModelForSequenceClassification,
    "span": AutoModelForQuestionAnswering,
    "choice": AutoModelForMultipleChoice,
    "pretraining": AutoModelForMaskedLM,
}
"""Kind of a run -> the class that loads its export."""
OPTIONS = 3
CALIBRATED = ("classification", "multi_label", "choice")


@pytest.fixture(scope="session")
def exported(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of a run -> its exported folder."""
    root: Path = tmp_path_factory.mktemp("exported")
    for kind, run in runs.items():
        export_hf(run, root / kind)
    return {kind: root / kind for kind in runs}


def encoded(folder: Path) -> dict[str, Tensor]:
    """The texts and, behind them, pairs: of different, odd lengths, in two segments, padded."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    firsts, seconds = [*TEXTS, TEXTS[0]], [*reversed(TEXTS), ""]
    pairs = tokenizer(firsts, seconds, padding=True, truncation=True, return_tensors="pt")
    assert pairs["token_type_ids"].any()
    assert not pairs["attention_mask"].all()
    return dict(pairs)


def model_of(run: Path) -> tuple[Encoder, nn.Module]:
    """Encoder and head of a run, in eval mode."""
    checkpoint = load_checkpoint(run)
    if checkpoint.head["kind"] == "masked_lm":
        encoder = Encoder(checkpoint.encoder_config)
        head = MaskedLM(checkpoint.encoder_config, encoder.embeddings.word_embeddings)
        checkpoint.load_into(nn.ModuleDict({"encoder": encoder, "head": head}))
        return encoder.eval(), head.eval()
    module = load(run).module
    return module.encoder, module.head


@torch.inference_mode()
def our_logits(run: Path, batch: dict[str, Tensor]) -> Tensor:
    encoder, head = model_of(run)
    given = {**batch, "attention_mask": batch["attention_mask"].bool()}
    hidden = encoder(given).last_hidden_state
    is_lm = isinstance(head, MaskedLM)
    logits: Tensor = head(hidden) if is_lm else head(hidden, given["attention_mask"])
    return logits / temperature_of(run)


def temperature_of(run: Path) -> float:
    """That of a checkpoint: the export has it in its output layer."""
    return load_checkpoint(run).decision.get("temperature", 1.0)


def weights_of(run: Path) -> dict[str, Tensor]:
    """The weights of a run, its output layer divided by the temperature."""
    heat = temperature_of(run)
    return {
        name: tensor / heat if name.startswith("head.layers.3.") else tensor
        for name, tensor in load_checkpoint(run).weights().items()
    }


@torch.inference_mode()
def their_logits(kind: str, folder: Path, batch: dict[str, Tensor]) -> Tensor:
    model = CLASSES[kind].from_pretrained(folder).eval()
    if kind == "choice":
        batch = {name: tensor.unflatten(0, (-1, OPTIONS)) for name, tensor in batch.items()}
    output = model(**batch)
    if kind == "span":
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    logits: Tensor = output.logits
    return logits


@pytest.mark.parametrize("kind", CLASSES)
def test_logits_agree(kind: str, runs: dict[str, Path], exported: dict[str, Path]) -> None:
    batch = encoded(exported[kind])
    ours, theirs = our_logits(runs[kind], batch), their_logits(kind, exported[kind], batch)
    if kind == "regression":
        ours = ours.unsqueeze(-1)
    if kind in ("span", "pretraining"):  # what stands on padding is nobody's answer
        attended = batch["attention_mask"].bool()
        ours, theirs = ours[attended], theirs[attended]
    assert ours.std(dim=0).max() > 1e-3  # or else the texts would not be told apart
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", CLASSES)
def test_weights_and_settings_come_back_bit_for_bit(
    kind: str, runs: dict[str, Path], exported: dict[str, Path]
) -> None:
    checkpoint, back = load_checkpoint(runs[kind]), read_hf(exported[kind])
    assert back.form.name == "bert"
    assert back.encoder_config == checkpoint.encoder_config
    assert back.head["kind"] == checkpoint.head["kind"]
    assert back.left_out == []
    assert ("temperature" in checkpoint.decision) == (kind in CALIBRATED)
    expected = weights_of(runs[kind])
    assert set(back.weights) == set(expected)
    assert all(torch.equal(back.weights[name], tensor) for name, tensor in expected.items())


def settings_of(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return settings


@pytest.mark.parametrize(
    ("kind", "architecture", "problem", "labels"),
    [
        (
            "classification",
            "BertForSequenceClassification",
            "single_label_classification",
            ["False", "True"],
        ),
        (
            "multi_label",
            "BertForSequenceClassification",
            "multi_label_classification",
            ["cat", "red", "the"],
        ),
        ("regression", "BertForSequenceClassification", "regression", ["LABEL_0"]),
        ("span", "BertForQuestionAnswering", None, None),
        ("choice", "BertForMultipleChoice", None, ["A", "B", "C"]),
        ("pretraining", "BertForMaskedLM", None, None),
    ],
)
def test_config_tells_class_problem_and_labels(
    kind: str,
    architecture: str,
    problem: str | None,
    labels: list[str] | None,
    exported: dict[str, Path],
) -> None:
    settings = settings_of(exported[kind])
    assert settings["architectures"] == [architecture]
    assert settings.get("problem_type") == problem
    if labels is None:
        assert "id2label" not in settings
        return
    model = CLASSES[kind].from_pretrained(exported[kind])
    assert model.config.id2label == dict(enumerate(labels))
    assert model.config.label2id == {name: number for number, name in enumerate(labels)}


def test_tokenizer_gives_the_ids_and_the_length_of_the_run(
    runs: dict[str, Path], exported: dict[str, Path]
) -> None:
    theirs, predictor = (
        AutoTokenizer.from_pretrained(exported["classification"]),
        load(runs["classification"]),
    )
    assert theirs.model_max_length == MAX_LENGTH
    long = " ".join(TEXTS * 3)
    texts = [*TEXTS, "the [SEP] of a [MASK]", long]
    examples = [predictor.task.example({"text": text}, "here", n) for n, text in enumerate(texts)]
    features = predictor.task.features(
        examples, predictor.tokenizer, predictor.max_length, training=False
    )
    ids = theirs(texts, truncation=True)["input_ids"]
    assert ids == [list(feature.input_ids) for feature in features]
    assert len(ids[-1]) == MAX_LENGTH


def test_masked_token_is_filled(exported: dict[str, Path]) -> None:
    fill = pipeline("fill-mask", model=str(exported["pretraining"]))
    found = fill(f"the cat {fill.tokenizer.mask_token} a dog")
    assert len(found) == 5
    assert found[0]["score"] >= found[-1]["score"] > 0


class TestTextClassificationPipeline:
    def answers(self, kind: str, runs: dict[str, Path]) -> list[dict[str, Any]]:
        return load(runs[kind]).predict(TEXTS)

    def asked(self, kind: str, exported: dict[str, Path], **more: Any) -> list[Any]:
        classify = pipeline("text-classification", model=str(exported[kind]), **more)
        found: list[Any] = classify(TEXTS)
        return found

    def test_class_and_probability_are_those_of_the_run(
        self, runs: dict[str, Path], exported: dict[str, Path]
    ) -> None:
        for ours, theirs in zip(
            self.answers("classification", runs),
            self.asked("classification", exported),
            strict=True,
        ):
            assert theirs["label"] == ours["prediction"]
            expected = ours["probabilities"][ours["prediction"]]
            assert theirs["score"] == pytest.approx(expected, abs=1e-5)

    def test_each_class_of_several_has_its_own_probability(
        self, runs: dict[str, Path], exported: dict[str, Path]
    ) -> None:
        answers = self.answers("multi_label", runs)
        for ours, theirs in zip(
            answers, self.asked("multi_label", exported, top_k=None), strict=True
        ):
            found = {row["label"]: row["score"] for row in theirs}
            assert found == pytest.approx(ours["probabilities"], abs=1e-5)

    def test_number_is_given_as_it_is(
        self, runs: dict[str, Path], exported: dict[str, Path]
    ) -> None:
        theirs = [row["score"] for row in self.asked("regression", exported)]
        ours = [row["prediction"] for row in self.answers("regression", runs)]
        assert theirs == pytest.approx(ours, abs=1e-4)


@pytest.mark.skipif(
    "question-answering" not in SUPPORTED_TASKS,
    reason="the installed transformers has no question-answering pipeline any more",
)
def test_question_answering_pipeline_finds_a_span(exported: dict[str, Path]) -> None:
    answer = pipeline("question-answering", model=str(exported["span"]))
    found = answer(question="who is it", context=TEXTS[0])
    assert TEXTS[0][found["start"] : found["end"]].strip() == found["answer"].strip()


class TestCardExample:
    """The example of a card runs as it stands, in the folder above the exported one."""

    @pytest.mark.parametrize("kind", CLASSES)
    def test_runs(
        self,
        kind: str,
        exported: dict[str, Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(exported[kind].parent)
        card = (exported[kind] / "README.md").read_text(encoding="utf-8")
        code = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
        assert len(code) == 1
        exec(compile(code[0], "README.md", "exec"), {})
        assert capsys.readouterr().out.strip()


def test_of_several_seeds_the_best_one_is_taken(
    runs: dict[str, Path], exported: dict[str, Path]
) -> None:
    results = json.loads((runs["seeds"] / "results.json").read_text())
    values = results["metrics"]["accuracy"]["values"]
    best = results["seeds"][values.index(max(values))]
    expected = weights_of(runs["seeds"] / f"seed-{best}")
    found = read_hf(exported["seeds"]).weights
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    card = (exported["seeds"] / "README.md").read_text()
    assert f"The weights are those of seed {best}, the best of 2 by `accuracy`" in card


def test_named_seed_is_taken(runs: dict[str, Path], tmp_path: Path) -> None:
    for seed in (1, 2):
        run = runs["seeds"] / f"seed-{seed}"
        export_hf(run, tmp_path / str(seed))
        weights = read_hf(tmp_path / str(seed)).weights
        assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(run).items())
