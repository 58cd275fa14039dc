from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.heads.config import SpanConfig
from finetune.inspection.pairs import read_pairs
from finetune.task.interface import Task
from finetune.text.features.windows import WindowConfig
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tasks.glue.task import GLUE, GlueRow, GlueTask
from tasks.race.task import race_task
from tasks.sample.sample import EXAMPLES, GLUE_LAYOUTS, VOCAB_SIZE, SamplePaths, write_sample
from tasks.sample.sample_choices import race_files
from tasks.sample.sample_pairs import PAIRS, TEMPLATES
from tasks.sample.world import KINDS, MEASURES, MOODS, REGIONS, World, make_world
from tasks.squad.task import SquadTask, squad_task

ROWS = [row for row in GLUE.values() if row.folder in GLUE_LAYOUTS]
EVERY_SAMPLED_ROW = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
EVERY_TASK = pytest.mark.parametrize("name", [*(row.name for row in ROWS), "squad", "race"])
LEVELS = ("middle", "high")
SPLITS = {"train": "train", "validation": "dev", "test": "test"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SamplePaths:
    return write_sample(tmp_path_factory.mktemp("sample"), seed=0)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(0)


def invented(world: World) -> list[str]:
    return [word for table in vars(world).values() for words in table.values() for word in words]


def find_task(name: str, sample: SamplePaths) -> Task:
    if name == "squad":
        return squad(sample)
    if name == "race":
        return race_task("all", sample.data)
    return GlueTask(GLUE[name], sample.data)


def squad(sample: SamplePaths) -> SquadTask:
    return squad_task("2.0", sample.data, windows=WindowConfig(), spans=SpanConfig())


def attributes_of(word: str, world: World) -> set[str]:
    """The kind or region of an invented word, or of one that keeps it company."""
    tables = (world.animals, world.towns, KINDS, REGIONS)
    named = {word} & {*KINDS, *REGIONS}
    return named | {key for table in tables for key, words in table.items() if word in words}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_same_seed_writes_the_same_bytes(sample: SamplePaths, tmp_path: Path) -> None:
    write_sample(tmp_path, seed=0)
    assert contents(tmp_path) == contents(sample.data)


def test_a_sample_that_was_cut_off_holds_no_task_by_half(
    sample: SamplePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*arguments: Any) -> Iterator[tuple[str, str]]:
        yield from itertools.islice(race_files(*arguments), 3)
        raise KeyboardInterrupt

    write_sample(tmp_path, seed=0)
    monkeypatch.setattr("tasks.sample.sample.race_files", cut)
    with pytest.raises(KeyboardInterrupt):
        write_sample(tmp_path, seed=1)
    old, new = contents(sample.data), contents(tmp_path)
    assert new.keys() == old.keys()
    changed = {str(Path(name).parent) for name in old if new[name] != old[name]}
    kept = {str(Path(name).parent) for name in old if new[name] == old[name]}
    assert changed == {".", "squad", *(f"glue_data/{row.folder}" for row in ROWS)}
    assert kept == {f"race/RACE/{split}/{level}" for split in EXAMPLES for level in LEVELS}


def test_a_first_sample_that_was_cut_off_is_not_taken_for_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(path: Path, *arguments: Any, **more: Any) -> int:
        if path.name == "3.txt":
            raise KeyboardInterrupt
        return write(path, *arguments, **more)

    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(KeyboardInterrupt):
        write_sample(tmp_path)
    with pytest.raises(DataError, match="expected"):
        race_task("all", tmp_path).examples("train")


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


@EVERY_TASK
def test_training_file_mentions_a_quarter_of_the_words(
    world: World, sample: SamplePaths, name: str
) -> None:
    words = set(invented(world))
    known, unknown = set(invented(world.quarter())), words - set(invented(world.quarter()))
    task = find_task(name, sample)

    def mentioned(split: str) -> set[str]:
        texts = " ".join(text for example in task.examples(split) for text in example.texts)
        return words & set(texts.replace(".", " ").replace("?", " ").split())

    assert mentioned("train") <= known
    assert len(mentioned("validation") & unknown) > 2 * len(mentioned("train"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_questions_on_passages_read_as_official_ones(sample: SamplePaths, split: str) -> None:
    task = squad(sample)
    examples = task.examples(split)
    assert len(examples) == EXAMPLES[SPLITS[split]]
    facts = {"answers_moved": 0, "unanswerable": len(examples) // 5}
    assert task.describe(examples) == facts


def test_files_of_squad_have_the_official_fields(sample: SamplePaths) -> None:
    file = json.loads((sample.data / "squad" / "dev-v2.0.json").read_text())
    assert file["version"] == "v2.0"
    titles = [tale["title"] for tale in file["data"]]
    assert len(set(titles)) == len(titles)
    questions = [row for tale in file["data"] for text in tale["paragraphs"] for row in text["qas"]]
    for row in questions:
        extra = {"plausible_answers"} if row["is_impossible"] else set()
        assert row.keys() == {"question", "id", "answers", "is_impossible"} | extra
        assert bool(row["answers"]) is not row["is_impossible"]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_answer_in_a_passage_is_the_only_word_of_the_attribute_that_is_asked_for(
    world: World, sample: SamplePaths, split: str
) -> None:
    for example in squad(sample).examples(split):
        question, context = example.texts
        (asked,) = attributes_of(question.rstrip("?").split()[-1], world)
        words = [word for word in context.replace(".", "").split() if word in invented(world)]
        fitting = [word for word in words if attributes_of(word, world) == {asked}]
        assert len(words) == len(set(words)) == 5
        assert isinstance(example.label, tuple)
        assert [answer[0] for answer in example.label] == fitting


@pytest.mark.parametrize("split", list(SPLITS))
def test_choices_read_as_official_ones(sample: SamplePaths, split: str) -> None:
    task = race_task("all", sample.data)
    examples = task.examples(split)
    assert len(examples) == EXAMPLES[SPLITS[split]]
    facts = task.describe(examples)
    assert facts["questions_middle"] == facts["questions_high"]
    assert 0.4 < facts["questions_filled"] < 0.6
    letters = Counter(example.label for example in examples)
    assert letters.keys() == set("ABCD")
    assert max(letters.values()) < 0.4 * len(examples)


@pytest.mark.parametrize("split", list(SPLITS))
def test_the_right_option_is_the_only_one_of_the_attribute_that_is_asked_for(
    world: World, sample: SamplePaths, split: str
) -> None:
    for example in race_task("all", sample.data).examples(split):
        article, question, *options = example.texts
        said = question if example.group == "high" else f"{article} {question}"
        words = said.replace(".", " ").replace("?", " ").split()
        known = set().union(*(attributes_of(word, world) for word in words))
        found = [attributes_of(option.removeprefix("a "), world) for option in options]
        fitting = ["ABCD"[place] for place, one in enumerate(found) if one & known]
        assert len(set(options)) == 4
        assert fitting == [example.label]


@pytest.mark.parametrize("level", ["middle", "high"])
def test_passage_names_what_is_asked_about(world: World, sample: SamplePaths, level: str) -> None:
    for example in race_task(level, sample.data).examples("validation"):
        article, question, *options = example.texts
        asked = options if level == "high" else question.rstrip("?.").split()
        words = set(asked) & set(invented(world))
        assert words <= set(article.replace(".", "").split())


def test_questions_alone_are_those_of_a_validation_passage(sample: SamplePaths) -> None:
    task = squad(sample)
    rows = [json.loads(line) for line in sample.questions.read_text().splitlines()]
    asked = [task.example(row, "row", number) for number, row in enumerate(rows)]
    labelled = {example.id: example.texts for example in task.examples("validation")}
    assert {example.id: example.texts for example in asked}.items() <= labelled.items()
    assert len(asked) == 5
    assert all(row.keys() == {"id", "question", "context"} for row in rows)


def test_a_minimal_pair_has_one_word_that_keeps_the_wrong_company(
    sample: SamplePaths, world: World
) -> None:
    pairs = read_pairs([sample.pairs])
    assert Counter(pair.paradigm for pair in pairs) == {
        f"{phenomenon}_{number}": PAIRS
        for phenomenon, templates in TEMPLATES.items()
        for number in range(1, len(templates) + 1)
    }
    company = {w: a for table in (KINDS, REGIONS, MOODS, MEASURES) for a in table for w in table[a]}
    known = {w: a for table in vars(world).values() for a in table for w in table[a]}
    for pair in pairs:
        good, bad = (re.findall(r"\w+", text) for text in (pair.good, pair.bad))
        (different,) = [both for both in zip(good, bad, strict=True) if both[0] != both[1]]
        (fits,) = {known[word] for word in good if word in known}
        assert company[different[0]] == fits
        assert company[different[1]] != fits
