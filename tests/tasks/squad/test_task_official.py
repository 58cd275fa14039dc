"""The real files, where FINETUNE_DATA names a folder with them (marker `data`)."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import DataError
from finetune.heads.config import SpanConfig
from finetune.text.features.windows import WindowConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tasks.squad.task import SquadTask, answer_task, squad_task

pytestmark = pytest.mark.data

WINDOWS, SPANS = WindowConfig(), SpanConfig()
FILES = {  # version; questions, answers, unanswerable questions: as the data's README says
    "dev-v1.1.json": ("1.1", 10_570, 34_726, 0),
    "train-v1.1.part44.json": ("1.1", 11_877, 11_877, 0),
    "xquad.en.json": ("1.1", 1_190, 1_190, 0),
    "train-v2.0.part10.json": ("2.0", 4_719, 4_371, 348),
    "dev-v2.0.cs224n.json": ("2.0", 6_078, 10_052, 3_168),
}
EVERY_FILE = pytest.mark.parametrize("name", FILES)


def place(name: str) -> Path:
    return Path(os.environ["FINETUNE_DATA"]) / "squad" / name


def make(version: str, **files: str) -> SquadTask:
    named = {split: place(name) for split, name in files.items()}
    return squad_task(version, None, named, windows=WINDOWS, spans=SPANS)


@EVERY_FILE
def test_every_question_is_read(name: str) -> None:
    version, questions, answers, unanswerable = FILES[name]
    task = make(version, train=name)
    examples = task.examples("train")
    assert len(examples) == len({example.id for example in examples}) == questions
    assert sum(len(example.label) for example in examples) == answers
    described = {"answers_moved": 0} | ({} if version == "1.1" else {"unanswerable": unanswerable})
    assert task.describe(examples) == described


@EVERY_FILE
def test_every_answer_is_what_its_context_holds_there(name: str) -> None:
    for example in make(FILES[name][0], train=name).examples("train"):
        context = example.texts[1]
        assert all(context.startswith(text, start) for text, start in example.label)


@EVERY_FILE
def test_file_of_the_other_version_is_refused(name: str) -> None:
    other = {"1.1": "2.0", "2.0": "1.1"}[FILES[name][0]]
    with pytest.raises(DataError, match=f"expected SQuAD {other}, got {FILES[name][0]}"):
        make(other, validation=name).examples("validation")


@EVERY_FILE
def test_own_data_of_the_same_shape_have_the_same_version(name: str) -> None:
    task = answer_task({"train": place(name)}, WINDOWS, SPANS)
    assert task.version == FILES[name][0]
    assert task.examples("train") == make(task.version, train=name).examples("train")


def test_official_name_is_found_in_the_folder() -> None:
    task = squad_task("1.1", windows=WINDOWS, spans=SPANS)
    assert task.data_files("validation") in (
        [place("dev-v1.1.json")],
        [place("dev-v1.1.json.gz")],
    )
    assert len(task.examples("validation")) == 10_570


def test_questions_keep_their_spaces_and_contexts_their_line_breaks() -> None:
    examples = make("1.1", train="dev-v1.1.json").examples("train")
    examples += make("2.0", train="train-v2.0.part10.json").examples("train")
    assert any(example.texts[0] != example.texts[0].strip() for example in examples)
    longest = max(len(example.texts[1].split()) for example in examples)
    assert longest == 629


def test_withheld_answers_are_no_label() -> None:
    task = make("2.0", test="test-v2.0.cs224n.json", validation="test-v2.0.cs224n.json")
    examples = task.examples("test")
    assert len(examples) == 5_915
    assert {example.label for example in examples} == {None}
    assert task.score(task.baseline_answers([], examples)) == {}
    with pytest.raises(DataError, match="in any of 5,915 questions: they are withheld; name the"):
        task.examples("validation")


def test_baseline_answers_of_2_are_the_share_of_unanswerable_questions() -> None:
    task = make("2.0", train="train-v2.0.part10.json", validation="dev-v2.0.cs224n.json")
    examples = task.examples("validation")
    scores = task.score(task.baseline_answers(task.examples("train"), examples))
    assert scores["exact_match"] == scores["f1"] == scores["best_f1"] == 3_168 / 6_078
    assert (scores["has_answer_f1"], scores["no_answer_f1"]) == (0.0, 1.0)


def test_labels_read_as_outputs_get_nearly_the_full_score() -> None:
    windows = WindowConfig(stride=32)
    files = {"validation": place("dev-v2.0.cs224n.json")}
    task = squad_task("2.0", None, files, windows=windows, spans=SPANS)
    examples = task.examples("validation")
    contexts = sorted({example.texts[1] for example in examples})
    tokenizer = train_tokenizer(contexts, TokenizerConfig(vocab_size=4000))
    features = task.features(examples, tokenizer, 128, training=False)
    outputs = np.full((len(features), 2, 3), (-1.0, -1.0, -np.inf))
    outputs[:, 0] = 0.0
    for window, feature in zip(outputs, features, strict=True):
        right = feature.label != (0, 0)
        window[1] = (*feature.label, 3.0) if right else (*2 * (feature.context[0],), 2.0)
    rows = task.answers(outputs, examples, features)
    numbers = task.tune(rows)
    assert numbers == {"null_threshold": -2.5}  # answers have -3, the others -2
    # Before tuning, every question gets an answer; at times "The", which is as good as none.
    assert task.score(rows)["no_answer_exact_match"] < 0.5
    scores = task.score(task.decide(rows, numbers))
    assert scores["exact_match"] > 0.995  # the rest begins or ends inside a token: "8" of "18"
    assert scores["best_f1"] == scores["f1"] > 0.995
    assert scores["no_answer_exact_match"] == 1.0


def test_scores_of_a_whole_dev_set_take_about_a_second() -> None:
    task = make("1.1", validation="dev-v1.1.json")
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for example in task.examples("validation"):
        words = example.texts[1].split()
        first = int(rng.integers(len(words)))
        golds = [gold._asdict() for gold in example.label]
        rows.append({"prediction": " ".join(words[first : first + 4]), "answers": golds})
    before = time.process_time()
    scores = task.score(rows)
    assert time.process_time() - before < 2.0  # measured: 0.2 s
    assert 0 < scores["exact_match"] < scores["f1"] < 0.1


def test_compressed_file_reads_alike(tmp_path: Path) -> None:
    packed = tmp_path / "squad" / "dev-v1.1.json.gz"
    packed.parent.mkdir()
    document = json.loads(place("xquad.en.json").read_text(encoding="utf-8"))
    packed.write_bytes(gzip.compress(json.dumps(document).encode()))
    task = squad_task("1.1", tmp_path, windows=WINDOWS, spans=SPANS)
    assert task.examples("validation") == make("1.1", train="xquad.en.json").examples("train")
