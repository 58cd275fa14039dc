"""What stands in examples/ runs: under a Trainer of one's own, and in a loop of plain torch."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import finetune
from finetune.__main__ import main
from finetune.runs import families
from tests.made.texts import write_texts

EXAMPLES = Path(__file__).parent.parent / "examples"
EPOCHS = 10


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def done(files: Path) -> Any:
    """What the example of one's own Trainer gives: what answers, and its two diaries."""
    words = [str(files / name) for name in ("corpus.txt", "train.csv", "validation.csv", "out")]
    return load("own_trainer").main(words, epochs=EPOCHS)


def logged(folder: Path, name: str) -> list[float]:
    """The values of a column of what Lightning's CSVLogger wrote, in order."""
    (file,) = folder.rglob("metrics.csv")
    with file.open(newline="") as table:
        return [float(row[name]) for row in csv.DictReader(table) if row.get(name)]


def test_ones_own_callback_sees_each_validation(done: Any) -> None:
    _, before, after = done
    assert len(before.values) == EPOCHS
    assert before.values[-1] < before.values[0]  # nats
    assert 1 < len(after.values) <= EPOCHS  # it may have stopped early
    assert max(after.values) == 1.0  # accuracy: the label stands in the text


def test_ones_own_logger_gets_the_figures(done: Any, files: Path) -> None:
    out, (_, before, after) = files / "out", done
    assert logged(out / "pretrain", "val/loss") == pytest.approx(before.values)
    assert logged(out / "fine-tune", "val/accuracy") == pytest.approx(after.values)
    losses = logged(out / "fine-tune", "train/loss")
    assert len(losses) == len(after.values) * 4  # a line a step: 64 texts in batches of 16
    assert losses[0] == pytest.approx(math.log(2), abs=0.2)


def test_ones_own_callback_keeps_the_best_weights(done: Any, files: Path) -> None:
    (kept,) = (files / "out" / "pretrain" / "pretrained").glob("*.ckpt")
    assert kept.stat().st_size > 0


def test_what_was_trained_answers_texts(done: Any) -> None:
    answers = done[0].predict(["the cat likes a good tree", "a bad dog hears the bird"])
    assert [answer["prediction"] for answer in answers] == ["good", "bad"]


def test_what_ones_own_trainer_trained_is_a_run_like_any_other(done: Any, files: Path) -> None:
    run, texts = files / "out" / "run", ["the cat likes a good tree", "a bad dog hears the bird"]
    assert finetune.load(run).predict(texts) == done[0].predict(texts)
    results = json.loads((run / "results.json").read_text())
    assert finetune.evaluate(run)["metrics"] == results["metrics"]
    assert results["metrics"]["accuracy"] == 1.0
    assert finetune.FitRun.from_yaml(run / "config.yaml").head.pooling == "mean"
    report = files / "report.html"
    assert main(["report", str(run), "--out", str(report)]) == 0
    assert "accuracy" in report.read_text()
    assert main(["export", str(run), "--format", "onnx", "--out", str(files / "onnx")]) == 0
    with pytest.raises(finetune.ConfigError, match="already contains a run"):
        done[0].save(run)
    with pytest.raises(finetune.ConfigError, match="unknown setting 'pool'"):
        done[0].save(files / "other", pool="mean")
    done[0].save(files / "unscored", score=False)
    assert not (files / "unscored" / "results.json").exists()
    assert finetune.load(files / "unscored").predict(texts) == done[0].predict(texts)


def test_the_encoder_learns_in_a_plain_loop(done: Any, tmp_path: Path) -> None:
    write_texts(tmp_path, labels=("0", "1"))
    loop = load("own_loop")
    encoder = saved_encoder(done, tmp_path / "encoder")
    losses = loop.train(encoder, str(tmp_path / "train.csv"), epochs=EPOCHS, rate=1e-2)
    assert losses[-1] < losses[0]  # nats
    assert losses[-1] < math.log(2) / 4  # it knew the texts already, its output layer did not


def saved_encoder(done: Any, folder: Path) -> str:
    from finetune.checkpoints.folder import save_checkpoint

    module, tokenizer = done[0].module, done[0].tokenizer
    config = module.encoder.config
    save_checkpoint(folder, module, tokenizer, encoder_config=config, head={"kind": "none"})
    return str(folder)


@pytest.fixture
def fasttext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example package of a family, as `pip install` leaves it."""
    package = EXAMPLES / "fasttext_family"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"]["finetune.families"].items()
    about = tmp_path / "site" / "fasttext_family-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[finetune.families]\n{entry[0]} = {entry[1]}\n")
    monkeypatch.syspath_prepend(package)
    monkeypatch.syspath_prepend(about.parent)
    families._installed.cache_clear()
    yield
    families._installed.cache_clear()


def test_the_example_of_a_family_has_a_command_and_is_known_to_python(
    fasttext: None, done: Any, files: Path, tmp_path: Path
) -> None:
    rows = (files / "train.csv").read_text().splitlines()[1:]
    lines = [f"__label__{row.rpartition(',')[2]} {row.rpartition(',')[0]}" for row in rows]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    encoder, out = saved_encoder(done, tmp_path / "encoder"), tmp_path / "run"
    words = ["--train", "train.txt", "--validation", "train.txt", "--encoder", encoder]
    words = [str(tmp_path / word) if word.endswith(".txt") else word for word in words]
    options = ["--out", str(out), "--max-steps", "2", "--max-length", "32", "--no-wandb"]
    assert main(["fasttext", *words, *options, "--cache-dir", str(tmp_path / "cache")]) == 0
    assert finetune.evaluate(out)["task"] == "fasttext/own"
    (row,) = finetune.load(out).predict("the cat likes a good tree")
    assert set(row["probabilities"]) == {"good", "bad"}
    (tmp_path / "wrong.txt").write_text("good the cat\n")
    task = finetune.find_task("fasttext", train=tmp_path / "wrong.txt")
    with pytest.raises(finetune.DataError, match=r"wrong\.txt:1: expected __label__NAME"):
        task.examples("train")
