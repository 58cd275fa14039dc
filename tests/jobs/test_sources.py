from __future__ import annotations

from pathlib import Path

import pytest

from finetune.errors import ConfigError, DataError
from finetune.inspection import Model, TextChoice, read_sequences
from finetune.jobs.sources import drawn, load_model, longest_text, runs_of
from tests.made.nets import tiny_encoder


def read(model: Model, path: Path, content: str, **changes: int) -> list[list[int]]:
    path.write_text(content, encoding="utf-8")
    found = read_sequences(model, TextChoice(file=str(path), **changes))
    assert found.about == path.name
    return [list(feature.input_ids) for feature in found.features]


def test_file_of_texts_and_pairs_keeps_its_order(model: Model, tmp_path: Path) -> None:
    lines = '{"text1": "the", "text2": "a"}\n{"text": "cat"}\n{"text1": "cat", "text2": "the"}\n'
    found = read(model, tmp_path / "texts.jsonl", lines)
    the, cat, a = (model.tokenizer.encode_ids([word])[0] for word in ("the", "cat", "a"))
    cls, sep = [model.tokenizer.cls_token_id], [model.tokenizer.sep_token_id]
    assert found == [
        cls + the + sep + a + sep,
        cls + cat + sep,
        cls + cat + sep + the + sep,
    ]


def test_limit_draws_texts_by_the_seed(model: Model, tmp_path: Path) -> None:
    content = "\n".join(["the cat", "a dog", "the bird"] * 10)
    assert len(read(model, tmp_path / "texts.txt", content, limit=7)) == 7
    assert drawn(5, None, 1) == drawn(5, 5, 1) == [0, 1, 2, 3, 4]
    assert drawn(100, 10, 1) == sorted(set(drawn(100, 10, 1)))
    assert drawn(100, 10, 1) != drawn(100, 10, 2)


def test_row_without_text_is_named_by_its_line(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"texts.jsonl:2: expected the field 'text', .* sentence"):
        read(model, tmp_path / "texts.jsonl", '{"text": "the"}\n{"sentence": "a"}\n')
    with pytest.raises(DataError, match=r"texts.jsonl:1: .* got text"):
        read(model, tmp_path / "texts.jsonl", '{"text": 3}\n')
    with pytest.raises(DataError, match="empty.jsonl: expected texts, got none"):
        read(model, tmp_path / "empty.jsonl", "")


def test_task_and_file_together_are_refused(model: Model) -> None:
    choice = TextChoice(task="glue/sst2", file="texts.txt")
    with pytest.raises(ConfigError, match="--input names the texts, and so do --task"):
        read_sequences(model, choice)


def test_task_gives_its_validation_split(model: Model, data: Path) -> None:
    choice = TextChoice(task="glue/sst2", data=str(data), max_length=16)
    found = read_sequences(model, choice)
    assert (found.about, len(found.features)) == ("glue/sst2 validation", 30)
    assert found.features[0].label is None
    assert int(found.lengths.max()) <= 16


def test_seeds_are_in_their_order(tmp_path: Path) -> None:
    assert runs_of(tmp_path) == [tmp_path]
    for seed in (10, 9, 1):
        (tmp_path / f"seed-{seed}").mkdir()
    assert [run.name for run in runs_of(tmp_path)] == ["seed-1", "seed-9", "seed-10"]
    with pytest.raises(ConfigError, match=r"contains a run of several seeds; choose one: .*seed-1"):
        load_model(tmp_path)


def test_length_ends_where_learned_positions_do(model: Model) -> None:
    assert longest_text(model.encoder.config) == 32
    assert longest_text(model.encoder.config, 8) == 8
    rotary = tiny_encoder(position="rotary").config
    assert longest_text(rotary) == 512
    assert longest_text(rotary, 1000) == 1000
