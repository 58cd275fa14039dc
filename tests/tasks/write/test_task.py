from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finetune.decoder import SearchConfig
from finetune.encoder import EncoderConfig
from finetune.errors import CheckpointError, ConfigError, DataError
from finetune.heads import HeadConfig
from finetune.text.tokenizer.tokenizer import Tokenizer
from tasks.families import FAMILIES
from tasks.run_settings import WriteRun
from tasks.write.task import WriteTask
from tests.made.texts import learned_tokenizer, write_lines

PAIRS = [
    {"source": "the cat sees a dog", "target": "a dog sees the cat"},
    {"id": "second", "source": "a bird", "target": "bird a"},
]


@pytest.fixture
def tokenizer() -> Tokenizer:
    """One that has these words whole."""
    return learned_tokenizer(85)


def task(folder: Path, rows: list[dict[str, object]], split: str = "train") -> WriteTask:
    path = write_lines(folder / f"{split}.jsonl", rows)
    return WriteTask(search=SearchConfig(max_target_length=6), files={split: path})


def test_rows_are_read_as_sources_and_targets(tmp_path: Path) -> None:
    first, second = task(tmp_path, PAIRS).examples("train")
    assert (first.id, first.texts, first.label) == (
        0,
        ("the cat sees a dog",),
        "a dog sees the cat",
    )
    assert second.id == "second"


def test_tables_with_these_columns_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("source,target\na bird,bird a\n")
    (example,) = WriteTask(files={"train": path}).examples("train")
    assert (example.texts, example.label) == (("a bird",), "bird a")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"source": " ", "target": "a"}, "expected a source with text in it, got an empty one"),
        ({"source": "a", "target": ""}, "expected a target with text in it, got an empty one"),
        ({"source": "a"}, "expected a text in the field 'target', got the fields source"),
        ({"text": "a", "target": "b"}, "in the field 'source', got the fields text, target"),
        ({"source": 3, "target": "b"}, "expected a text in the field 'source', got 3"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=rf"train\.jsonl:3: .*{message}"):
        task(tmp_path, [*PAIRS, row]).examples("train")


def test_several_bad_rows_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got 2 of 4 that cannot be used.*\n.*:3: .*\n.*:4: "):
        task(tmp_path, [*PAIRS, {"source": ""}, {"target": "a"}]).examples("train")


def test_a_test_file_may_lack_the_targets(tmp_path: Path, tokenizer: Tokenizer) -> None:
    withheld = task(tmp_path, [{"source": "a bird"}], "test")
    (example,) = withheld.examples("test")
    assert example.label is None
    (feature,) = withheld.features([example], tokenizer, 16, training=False)
    assert feature.target is None


def test_targets_go_from_a_start_to_an_end(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = task(tmp_path, PAIRS)
    features = pairs.features(pairs.examples("train"), tokenizer, 16, training=True)
    (target,) = tokenizer.encode_ids(["a dog sees the cat"])
    assert features[0].target == [tokenizer.cls_token_id, *target, tokenizer.sep_token_id]


def test_a_target_beyond_the_limit_is_named_by_file_and_line(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    long = {"source": "a", "target": "the cat and the dog and the bird"}
    pairs = task(tmp_path, [*PAIRS, long, {**long, "target": "the old dog and the old house"}])
    message = (
        r"train\.jsonl:3: expected a target of at most 6 tokens \(its end counts\), got 9, and 1 "
        "other target too long; raise max_target_length to 9, or shorten the targets"
    )
    with pytest.raises(DataError, match=message):
        pairs.features(pairs.examples("train"), tokenizer, 16, training=True)


def test_what_was_written_becomes_texts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = task(tmp_path, PAIRS)
    examples = pairs.examples("train")
    pairs.bind(tokenizer)
    ids = tokenizer.encode_ids(["a dog", "bird a"])
    assert len({len(row) for row in ids}) == 1
    end = tokenizer.sep_token_id
    outputs = np.array([[-0.5, *row, end, end] for row in ids], dtype=np.float32)
    written = {"score": -0.5, "source_words": 5}
    answers = pairs.answers(outputs, examples, [])
    assert answers == [
        {"id": 0, "prediction": "a dog", **written, "label": "a dog sees the cat"},
        {"id": "second", "prediction": "bird a", **written, "source_words": 2, "label": "bird a"},
    ]
    assert pairs.score(answers)["word_error_rate"] == pytest.approx(3 / 7)
    assert json.dumps(answers)


def test_a_head_needs_the_tokenizer_first(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs, config = task(tmp_path, PAIRS), EncoderConfig(num_hidden_layers=1, hidden_size=12)
    with pytest.raises(ConfigError, match=r"call task\.bind\(tokenizer\)"):
        pairs.head(config, HeadConfig())
    pairs.bind(tokenizer)
    head = pairs.head(config, HeadConfig())
    again = task(tmp_path, PAIRS)
    again.bind(tokenizer, {"kind": head.kind, **head.settings()})
    again.bind(tokenizer)  # as its data do
    wider = EncoderConfig(num_hidden_layers=3, hidden_size=12)  # its decoder has 1 layer even so
    assert again.head(wider, HeadConfig()).settings() == head.settings()


def test_a_head_with_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a head that writes texts, got one for the"):
        FAMILIES["write"].make(WriteRun("none", "write/own"), ("no", "yes"))


def test_a_vocabulary_is_of_sources_and_targets(tmp_path: Path) -> None:
    pairs = task(tmp_path, PAIRS)
    assert list(pairs.vocabulary_texts()) == [
        text for pair in PAIRS for text in (pair["source"], pair["target"])
    ]
