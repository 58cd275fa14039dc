from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from finetune.text.vocabulary import TokenizerConfig, train_tokenizer
from tasks.glue import GLUE, GlueRow, GlueTask
from tasks.sample import EXAMPLES, GLUE_LAYOUTS, VOCAB_SIZE, SamplePaths, write_sample
from tasks.world import World, make_world

ROWS = [row for row in GLUE.values() if row.folder in GLUE_LAYOUTS]
EVERY_SAMPLED_ROW = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
SPLITS = {"train": "train", "validation": "dev", "test": "test"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SamplePaths:
    return write_sample(tmp_path_factory.mktemp("sample"), seed=0)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(0)


def invented(world: World) -> list[str]:
    return [word for table in vars(world).values() for words in table.values() for word in words]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_same_seed_writes_the_same_bytes(sample: SamplePaths, tmp_path: Path) -> None:
    write_sample(tmp_path, seed=0)
    assert contents(tmp_path) == contents(sample.data)


def test_other_seed_makes_another_world(world: World) -> None:
    assert not set(invented(world)) <= set(invented(make_world(1)))


def test_every_invented_word_is_new(world: World) -> None:
    words = invented(world)
    assert len(set(words)) == len(words)


def test_corpus_is_small_and_in_documents(sample: SamplePaths) -> None:
    text = sample.corpus.read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    documents = text.rstrip("\n").split("\n\n")
    assert len(documents) > 1000
    assert all("\n" not in document for document in documents)


def test_corpus_mentions_every_invented_word_often(world: World, sample: SamplePaths) -> None:
    text = sample.corpus.read_text(encoding="utf-8")
    counts = Counter(text.replace(".", " ").replace(",", " ").replace("!", " ").split())
    assert all(counts[word] >= 100 for word in invented(world))


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_text_gives_the_vocabulary_with_nearly_every_word_whole(tmp_path: Path, seed: int) -> None:
    text = write_sample(tmp_path, seed).corpus.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(text.split("\n\n"), TokenizerConfig(vocab_size=VOCAB_SIZE))
    words = invented(make_world(seed))
    whole = [len(encoding.ids) == 1 for encoding in tokenizer.encode_batch(words)]
    assert sum(whole) >= 0.95 * len(words)


@EVERY_SAMPLED_ROW
def test_files_read_as_official_ones(sample: SamplePaths, row: GlueRow) -> None:
    task = GlueTask(row, sample.data)
    for split, file in SPLITS.items():
        examples = task.examples(split)
        assert len(examples) == EXAMPLES[file]
        assert all((example.label is None) == (split == "test") for example in examples)


@EVERY_SAMPLED_ROW
def test_no_label_has_the_field_to_itself(sample: SamplePaths, row: GlueRow) -> None:
    labels = Counter(example.label for example in GlueTask(row, sample.data).examples("validation"))
    assert max(labels.values()) <= 2 / 3 * sum(labels.values())


@EVERY_SAMPLED_ROW
def test_training_file_mentions_a_quarter_of_the_words(
    world: World, sample: SamplePaths, row: GlueRow
) -> None:
    words = set(invented(world))
    known, unknown = set(invented(world.quarter())), words - set(invented(world.quarter()))
    task = GlueTask(row, sample.data)

    def mentioned(split: str) -> set[str]:
        texts = " ".join(text for example in task.examples(split) for text in example.texts)
        return words & set(texts.replace(".", " ").split())

    assert mentioned("train") <= known
    assert len(mentioned("validation") & unknown) > 2 * len(mentioned("train"))
