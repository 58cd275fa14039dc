"""What stands in examples/ runs: under a Trainer of one's own, and in a loop of plain torch."""

from __future__ import annotations

import csv
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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
