"""The seeds of a run answer together: means of their answers by hand, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import finetune
from finetune.checkpoints.folder import load_checkpoint
from finetune.decoder import DecoderConfig
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError, ConfigError
from finetune.heads import HeadConfig, Seq2Seq
from finetune.jobs.ensembles import Ensemble, load_ensemble, together
from finetune.jobs.evaluation import answer_split
from finetune.jobs.scoring import load_scorer
from finetune.runs.fits import read_fit
from finetune.runs.folder import RunFolder
from finetune.runs.predictions import read_origin, read_predictions
from finetune.training.answering import Answerer, in_order
from tasks.__main__ import main
from tasks.write.task import WriteTask
from tests.made.families import write_families
from tests.made.texts import has_the, sentences, which_words, write_csv, write_sst2, write_tables

SEEDS = (1, 2, 3)


def tune(*words: object) -> None:
    common = ["--seeds", ",".join(map(str, SEEDS)), "--max-epochs", 1, "--no-baselines"]
    assert main([str(word) for word in [*words, *common]]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of head -> a run of three seeds."""
    root: Path = tmp_path_factory.mktemp("ensembles")
    files = write_families(root)
    own = files.data / "own"
    several = write_tables(own, which_words, "-several")
    lengths = write_tables(own, lambda text: len(text) / 7, "-length")
    choices, answers = (
        ["--train", own / f"train-{name}.jsonl", "--validation", own / f"validation-{name}.jsonl"]
        for name in ("choices", "answers")
    )
    commands: list[tuple[object, ...]] = [
        ("classification", "classify", *write_tables(own, has_the, "-the")),
        ("multi_label", "classify", *several, "--separator", ";", "--kind", "multi_label"),
        ("regression", "classify", *lengths),
        ("choice", "choose", *choices),
        ("span", "answer", *answers),
    ]
    for kind, *words in commands:
        config = files.span_config if kind == "span" else files.config
        start = ["--config", config, "--encoder", "none", "--tokenizer", _tokenizer(root)]
        tune(*words, *start, "--out", root / str(kind), "--cache-dir", root / "cache")
    return {path.name: path for path in root.iterdir() if (path / "results.json").is_file()}


def _tokenizer(root: Path) -> Path:
    from tests.made.texts import learned_tokenizer

    if not (root / "tokenizer").is_dir():
        learned_tokenizer().save(root / "tokenizer")
    return root / "tokenizer"


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the classification run, to be spoilt."""
    return Path(shutil.copytree(made["classification"], tmp_path / "run"))


def rows_of(run: Path, split: str = "validation") -> list[dict[str, Any]]:
    return read_predictions(run / "predictions" / f"{split}.jsonl")


def each_of(run: Path) -> list[list[dict[str, Any]]]:
    return [rows_of(run / f"seed-{seed}") for seed in SEEDS]


def loaded(run: Path, **how: bool) -> finetune.Predictor:
    model = finetune.load(run, **how)
    assert isinstance(model, finetune.Predictor)
    return model


@pytest.mark.parametrize("kind", ["classification", "multi_label", "choice"])
def test_a_seed_is_scored_again_by_the_decision_in_its_checkpoint(
    kind: str, made: dict[str, Path]
) -> None:
    seed = made[kind] / "seed-1"
    results = RunFolder(seed).read_results()
    decision = {k: v for k, v in results["decision"].items() if k != "tuned_on"}
    assert decision == load_checkpoint(seed).decision
    assert results["decision"]["tuned_on"] == "validation"
    assert results["calibration"]["validation"]["nll"].keys() == {"before", "after"}
    again = finetune.evaluate(seed)
    for key in ("metrics", "decision", "calibration"):
        assert again[key] == results[key]
    if kind == "multi_label":
        assert again["fixed_thresholds"].keys() == again["metrics"].keys()


def test_a_split_that_is_all_right_is_said_not_to_calibrate(
    made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = made["classification"] / "seed-1"
    scorer = load_scorer(seed, read_fit(seed))
    labels = [example.label for example in scorer.data.examples("validation")]
    sure = [[9.0 * (name == label) for name in scorer.task.labels] for label in labels]
    scorer._read["validation"] = np.array(sure)
    assert scorer.tune() == {}
    assert "not calibrated: every answer on validation is right" in capsys.readouterr().err


def mean_of(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row["probabilities"][name] for row in rows]))


@pytest.mark.parametrize("kind", ["classification", "multi_label", "choice"])
def test_probabilities_are_the_means_of_the_seeds_rows(kind: str, made: dict[str, Path]) -> None:
    results = finetune.evaluate(made[kind], ensemble=True)
    rows = rows_of(made[kind])
    seeds = each_of(made[kind])
    assert [row["id"] for row in rows] == [row["id"] for row in seeds[0]]
    cuts = [load_checkpoint(made[kind] / f"seed-{seed}").decision for seed in SEEDS]
    right = 0
    for row, each in zip(rows, zip(*seeds, strict=True), strict=True):
        means = {name: mean_of(list(each), name) for name in row["probabilities"]}
        assert row["probabilities"] == pytest.approx(means, abs=2e-6)
        if kind == "multi_label":
            above = [
                name
                for name, value in row["probabilities"].items()
                if value > np.mean([one.get(f"threshold/{name}", 0.5) for one in cuts])
            ]
            assert row["prediction"] == above
        else:
            assert means[row["prediction"]] == pytest.approx(max(means.values()), abs=2e-6)
        right += row["prediction"] == row["label"]
    accuracy = "subset_accuracy" if kind == "multi_label" else "accuracy"
    assert results["metrics"][accuracy] == pytest.approx(right / len(rows))


def test_numbers_are_the_means_of_the_seeds_rows(made: dict[str, Path]) -> None:
    finetune.evaluate(made["regression"], ensemble=True)
    means = np.mean(
        [[row["prediction"] for row in rows] for rows in each_of(made["regression"])], axis=0
    )
    got = [row["prediction"] for row in rows_of(made["regression"])]
    assert got == pytest.approx(means.tolist(), abs=2e-6)


def test_scores_of_passages_are_the_means_of_the_seeds_scores(made: dict[str, Path]) -> None:
    run = read_fit(made["span"] / "seed-1")
    members, scorer = load_ensemble(RunFolder(made["span"]), run)
    outputs, order = [], []
    with torch.no_grad():
        for batch in scorer.data.loader("validation"):
            logits = [one(batch) for one in members]  # (B, T, 2) each
            found = scorer.module.outputs(scorer.module(batch), batch)  # (B, K, 3)
            first, last = found[..., 0].long(), found[..., 1].long()
            rows = torch.arange(len(found))[:, None]
            mean = sum(one[rows, first, 0] + one[rows, last, 1] for one in logits) / len(members)
            real = found[..., 2].isfinite()
            torch.testing.assert_close(found[..., 2][real], mean[real])
            outputs.append(found)
            order.append(batch["index"])
    answers = scorer.answers("validation")
    task, data = scorer.task, scorer.data
    again = task.answers(
        in_order(outputs, order), data.examples("validation"), data.features("validation")
    )
    assert [row["nbest"] for row in answers] == [row["nbest"] for row in again]


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "span"])
def test_the_average_of_equal_models_is_that_model(kind: str) -> None:
    torch.manual_seed(0)
    shape = {"regression": (5,), "span": (5, 7, 2)}.get(kind, (5, 3))
    logits = 20 * torch.randn(shape)
    mean = together(kind, [logits, logits, logits])
    if kind == "classification":
        logits = logits.log_softmax(dim=-1)
    torch.testing.assert_close(mean, logits, atol=1e-4, rtol=1e-4)


def test_padding_of_spans_stays_finite() -> None:
    lowest = torch.full((1, 2, 2), torch.finfo(torch.float32).min)
    assert together("span", [lowest] * 7).isfinite().all()


def test_results_name_the_seeds_and_have_each_score_beside(made: dict[str, Path]) -> None:
    results = finetune.evaluate(made["classification"], ensemble=True)
    assert results["ensemble"]["seeds"] == list(SEEDS)
    each = finetune.evaluate(made["classification"])["metrics"]
    assert results["ensemble"]["each"] == each
    assert results["ensemble"]["average_weights"].keys() == each.keys()
    assert "decision" not in results  # of no checkpoint
    assert results["calibration"]["validation"]["ece"]["after"] >= 0


def test_loaded_ensemble_predicts_the_mean_of_its_seeds(made: dict[str, Path]) -> None:
    run, texts = made["classification"], sentences(3, 6)
    rows = loaded(run, ensemble=True).predict(texts)
    each = [loaded(run / f"seed-{seed}").predict(texts) for seed in SEEDS]
    for row, seeds in zip(rows, zip(*each, strict=True), strict=True):
        for name, value in row["probabilities"].items():
            assert value == pytest.approx(mean_of(list(seeds), name), abs=2e-6)


def test_command_predicts_by_all_seeds(made: dict[str, Path], tmp_path: Path) -> None:
    run = made["classification"]
    given = write_csv(tmp_path / "in.csv", ["text"], [[text] for text in sentences(3, 6)])
    words = ["predict", run, "--input", given, "--output", tmp_path / "out.jsonl", "--ensemble"]
    assert main([str(word) for word in words]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = loaded(run, ensemble=True).predict(sentences(3, 6))
    assert [row["probabilities"] for row in rows] == [row["probabilities"] for row in expected]


def test_averaged_weights_are_means_and_a_model_like_any_other(
    made: dict[str, Path], tmp_path: Path
) -> None:
    run = made["classification"]
    model = loaded(run, average_weights=True)
    assert isinstance(model.module, Answerer)
    each = [load_checkpoint(run / f"seed-{seed}").weights() for seed in SEEDS]
    for name, tensor in model.module.state_dict().items():
        torch.testing.assert_close(tensor, sum(one[name] for one in each) / len(each))
    model.save(tmp_path / "soup")
    rows = loaded(tmp_path / "soup").predict(sentences(3, 4))
    assert [row["id"] for row in rows] == [0, 1, 2, 3]


def test_table_shows_the_ensemble_beside_its_seeds(
    made: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(made["classification"]), "--ensemble"]) == 0
    captured = capsys.readouterr()
    header = next(line for line in captured.err.splitlines() if "average weights" in line)
    assert "ensemble" in header
    assert json.loads(captured.out)["metrics"].keys() >= {"accuracy", "auc"}


class TestAnswersOnFile:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        write_sst2(tmp_path, has_the)
        config = write_families(tmp_path / "more").config
        start = ["--config", config, "--encoder", "none", "--tokenizer", _tokenizer(tmp_path)]
        run = tmp_path / "run"
        tune("glue", "sst2", "--data", tmp_path, *start, "--out", run)
        return run

    def test_are_read_again_until_a_seed_changes(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        answers = answer_split(run, "validation", ensemble=True)
        file = run / "predictions" / "validation.jsonl"
        assert read_predictions(file) == answers
        capsys.readouterr()
        assert answer_split(run, "validation", ensemble=True) == answers
        assert "answering" not in capsys.readouterr().err
        before = read_origin(file)
        shutil.rmtree(run / "seed-2" / "checkpoints")
        shutil.copytree(run / "seed-1" / "checkpoints", run / "seed-2" / "checkpoints")
        answer_split(run, "validation", ensemble=True)
        assert "its answers are of another checkpoint" in capsys.readouterr().err
        assert read_origin(file) != before


class TestRefusals:
    def test_a_run_of_one_seed(self, made: dict[str, Path]) -> None:
        for ask in (finetune.evaluate, finetune.load):
            with pytest.raises(ConfigError, match="needs a run of several seeds, got one seed"):
                ask(made["classification"] / "seed-1", ensemble=True)

    def test_a_seed_that_has_not_ended(self, copied: Path) -> None:
        (copied / "seed-2" / "results.json").unlink()
        with pytest.raises(ConfigError, match=r"3 seeds that have ended, got seed-2 that is missi"):
            finetune.load(copied, ensemble=True)

    def test_a_seed_that_is_gone(self, copied: Path) -> None:
        shutil.rmtree(copied / "seed-3")
        with pytest.raises(ConfigError, match="got seed-3 that is missing or unfinished; continue"):
            finetune.evaluate(copied, ensemble=True)

    @pytest.mark.parametrize(
        ("kind", "what"), [("regression", "the labels"), ("multi_label", "the labels")]
    )
    def test_a_seed_of_another_task(
        self, kind: str, what: str, made: dict[str, Path], copied: Path
    ) -> None:
        shutil.rmtree(copied / "seed-2")
        shutil.copytree(made[kind] / "seed-2", copied / "seed-2")
        with pytest.raises(CheckpointError, match=f"seed-2.*: expected {what} of the other seeds"):
            finetune.load(copied, ensemble=True)

    def test_both_kinds_of_average(self, made: dict[str, Path]) -> None:
        with pytest.raises(ConfigError, match="got both; choose one"):
            finetune.load(made["classification"], ensemble=True, average_weights=True)

    def test_an_ensemble_to_save(self, made: dict[str, Path], tmp_path: Path) -> None:
        model = loaded(made["classification"], ensemble=True)
        with pytest.raises(ConfigError, match="expected one model to save, got an ensemble"):
            model.save(tmp_path / "x")


def test_texts_have_no_average() -> None:
    config = EncoderConfig(hidden_size=12, num_hidden_layers=1, vocab_size=9)
    head = Seq2Seq(config, HeadConfig(), DecoderConfig().shape(config), start=1, end=2)
    member = Answerer(Encoder(config), head, WriteTask())
    with pytest.raises(ConfigError, match="write/own writes texts, which have no average"):
        Ensemble([member, member])
