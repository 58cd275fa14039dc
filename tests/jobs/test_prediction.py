"""A predictor takes one example or many, in whatever form a program has them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import finetune
from finetune.encoder.int8 import Int8Linear
from finetune.errors import ConfigError, DataError
from finetune.jobs import prediction
from finetune.jobs.loading import in_int8
from finetune.task.interface import Task
from finetune.training.answering import ReadsAnswers
from tasks.__main__ import main
from tests.made.nets import tiny_config
from tests.made.texts import learned_tokenizer, write_csv

TEXTS = ["the cat sees a dog", "a bird"]


def predictor(task: Task) -> finetune.Predictor:
    tokenizer = learned_tokenizer()
    encoder = finetune.Encoder(tiny_config(vocab_size=tokenizer.vocab_size))
    tuner = finetune.FineTuner(encoder, task.head(encoder.config, finetune.HeadConfig()), task)
    return finetune.Predictor(tuner, tokenizer, max_length=16, batch_size=4)


@pytest.fixture
def reviews(tmp_path: Path) -> finetune.Predictor:
    """Of a table whose text column has a name of its own."""
    rows = [("a cat", "x"), ("a dog", "y")]
    train = write_csv(tmp_path / "train.csv", ["review", "label"], rows)
    return predictor(finetune.find_task("classify", train=train, validation=train))


@pytest.fixture
def pairs(tmp_path: Path) -> finetune.Predictor:
    rows = [("a cat", "an animal", "x"), ("a dog", "a plant", "y")]
    train = write_csv(tmp_path / "pairs.csv", ["premise", "hypothesis", "label"], rows)
    return predictor(finetune.find_task("classify", train=train, validation=train))


def test_a_text_is_one_example_and_no_list_of_letters(reviews: finetune.Predictor) -> None:
    (row,) = reviews.predict(TEXTS[0])
    first = reviews.predict(TEXTS)[0]
    # A batch of another size may change the last bit, which nine digits may show.
    assert row["probabilities"] == pytest.approx(first["probabilities"], rel=1e-5)
    assert {**row, "probabilities": None} == {**first, "probabilities": None}


@pytest.mark.parametrize(
    "data",
    [
        [{"review": text} for text in TEXTS],
        {"review": TEXTS},
        pd.DataFrame({"review": TEXTS, "other": [1, 2]}),
        pd.Series(TEXTS),
        datasets.Dataset.from_dict({"review": TEXTS}),
        (text for text in TEXTS),
    ],
    ids=["rows", "columns", "frame", "series", "dataset", "generator"],
)
def test_every_form_gives_the_answers_of_a_list(reviews: finetune.Predictor, data: Any) -> None:
    assert reviews.predict(data) == reviews.predict(TEXTS)


def test_a_tuple_is_a_pair_of_a_users_table_too(pairs: finetune.Predictor) -> None:
    named = [{"premise": "a cat", "hypothesis": "an animal"}, {"premise": "a", "hypothesis": "b"}]
    assert pairs.predict([("a cat", "an animal"), ("a", "b")]) == pairs.predict(named)
    assert pairs.predict(("a cat", "an animal")) == pairs.predict(named[:1])


def test_too_few_or_too_many_texts_are_refused_by_place(
    reviews: finetune.Predictor, pairs: finetune.Predictor
) -> None:
    with pytest.raises(
        DataError, match=r"texts\[1\]: expected 1 text \(the field 'review'\), got 2 texts"
    ):
        reviews.predict(["a cat", ("a", "pair")])
    expected = r"texts\[0\]: expected 2 texts \(the fields .* a tuple\), got 1 text"
    with pytest.raises(DataError, match=expected):
        pairs.predict("a cat")


def test_rows_make_a_table_of_pandas(reviews: finetune.Predictor) -> None:
    table = pd.DataFrame(reviews.predict(TEXTS))
    assert list(table.columns) == ["id", "prediction", "probabilities"]
    assert table["id"].tolist() == [0, 1]
    wide = pd.json_normalize(reviews.predict(TEXTS))
    assert wide["probabilities.x"].dtype == float


def test_rows_are_read_a_bounded_number_ahead_and_answered_in_order(
    reviews: finetune.Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "WINDOW_BATCHES", 2)
    read = 0

    def text_of(number: int) -> str:
        return "a cat " * (number * 7 % 5 + 1)

    def rows() -> Iterator[tuple[str, dict[str, str]]]:
        nonlocal read
        for number in range(30):
            read += 1
            yield f"row {number}", {"review": text_of(number)}

    alone = [reviews.predict(text_of(number))[0]["probabilities"] for number in range(30)]
    assert len({str(row) for row in alone}) > 2
    for number, answer in enumerate(reviews.stream(rows())):
        assert answer["id"] == number
        assert answer["probabilities"] == pytest.approx(alone[number], rel=1e-5)
        assert read <= (number // 8 + 1) * 8  # two batches of four
    assert read == 30


def test_weights_are_not_drawn_where_they_are_read(
    reviews: finetune.Predictor, tmp_path: Path
) -> None:
    reviews.save(tmp_path / "run")
    before = torch.get_rng_state()
    answers = finetune.load(tmp_path / "run").predict(TEXTS)
    assert torch.equal(torch.get_rng_state(), before)
    assert answers == reviews.predict(TEXTS)


def test_answers_in_8_bits_are_nearly_those_of_float32(
    reviews: finetune.Predictor, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    reviews.save(run)
    before = (run / "predictions" / "validation.jsonl").read_bytes()
    plain, rounded = (finetune.load(run, int8=int8).predict(TEXTS) for int8 in (False, True))
    assert rounded != plain
    for row, other in zip(rounded, plain, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=0.02)
    results = finetune.evaluate(run, int8=True)
    assert results["int8"].keys() == results["metrics"].keys()
    assert (run / "predictions" / "validation.jsonl").read_bytes() == before
    texts, answers = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    texts.write_text("\n".join(TEXTS) + "\n")
    command = ["predict", str(run), "--input", str(texts), "--output", str(answers), "--int8"]
    assert main(command) == 0
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [row["probabilities"] for row in lines] == [row["probabilities"] for row in rounded]


def test_scores_of_8_bits_are_those_of_the_rounded_model(
    reviews: finetune.Predictor, tmp_path: Path
) -> None:
    lengths = [(f"{'a cat ' * number}", str(number / 7)) for number in range(1, 6)]
    table = write_csv(tmp_path / "lengths.csv", ["text", "label"], lengths)
    predictor(finetune.find_task("classify", train=table, validation=table)).save(tmp_path / "run")
    results = finetune.evaluate(tmp_path / "run", int8=True)
    answers = finetune.load(tmp_path / "run", int8=True).predict([text for text, _ in lengths])
    said = [row["prediction"] for row in answers]
    by_hand = np.corrcoef(said, [float(label) for _, label in lengths])[0, 1]
    assert results["int8"]["pearson"] == pytest.approx(by_hand, abs=1e-4)
    assert results["int8"]["pearson"] != results["metrics"]["pearson"]


def test_all_members_of_an_ensemble_are_in_8_bits(reviews: finetune.Predictor) -> None:
    module = reviews.module
    assert isinstance(module, ReadsAnswers)
    members = [module, copy.deepcopy(module)]
    in_int8(SimpleNamespace(members=members, parameters=module.parameters))  # type: ignore[arg-type]
    for one in members:
        assert any(isinstance(part, Int8Linear) for part in one.encoder.modules())


def test_8_bits_are_scored_for_one_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int8 is scored for one model: remove it or the ensem"):
        finetune.evaluate(tmp_path, ensemble=True, int8=True)
