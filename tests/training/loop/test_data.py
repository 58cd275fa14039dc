"""Batches: a pure function of (seed, epoch), startable anywhere, shared out among processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from finetune.errors import ConfigError, DataError
from finetune.task.drawing import stratified
from finetune.task.interface import Example, GoldAnswer
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.corpus.masking import MaskingConfig
from finetune.text.features.files import load_features, save_features
from finetune.text.features.pairs import Features, length_batches
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.config import LoaderConfig
from finetune.training.loop import data as data_module
from finetune.training.loop.accumulation import FILLER, labels_of
from finetune.training.loop.data import CorpusData, OrderedData, check_parts
from finetune.training.loop.resume import TrainingProgress
from finetune.training.loop.task_data import TaskData
from tasks.glue.task import GlueTask, glue_task

Batch = dict[str, torch.Tensor]


# Two workers are what is under test, also where there is one core.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")


@pytest.fixture
def corpus_data(blocks: Corpus, tokenizer: Tokenizer) -> Any:
    def make(batch_size: int = 8, workers: int = 0, seed: int = 1, **more: Any) -> CorpusData:
        loader = LoaderConfig(batch_size=batch_size, num_workers=workers, validation_batches=3)
        arguments = {"corpus": blocks, "masking": MaskingConfig(), "seed": seed} | more
        return CorpusData(tokenizer=tokenizer, loader=loader, **arguments)

    return make


@pytest.fixture
def task_data(data: Path, tokenizer: Tokenizer, tmp_path: Path) -> Any:
    def make(batch_size: int = 8, workers: int = 0, seed: int = 1, **more: Any) -> TaskData:
        loader = LoaderConfig(batch_size=batch_size, num_workers=workers)
        arguments = {"task": glue_task("sst2", data), "tokenizer": tokenizer, "max_length": 16}
        return TaskData(
            loader=loader, seed=seed, cache_dir=tmp_path / "features", **arguments | more
        )

    return make


@pytest.fixture
def large_corpus_data(corpus_data: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A corpus of so many blocks that their order is not stored."""
    monkeypatch.setattr(data_module, "MOST_STORED", 0)
    return corpus_data


@pytest.fixture(params=["corpus_data", "large_corpus_data", "task_data"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def in_process(data: OrderedData, epoch: int = 0, rank: int = 0, ranks: int = 1) -> OrderedData:
    """As a trainer would have it in that epoch of that process."""
    place = {"current_epoch": epoch, "global_rank": rank, "world_size": ranks}
    data.trainer = SimpleNamespace(strategy=None, **place)  # type: ignore[assignment]
    return data


def batches(data: OrderedData, **place: int) -> list[Batch]:
    return list(in_process(data, **place).train_dataloader())


def assert_equal(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for ours, theirs in zip(left, right, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_order_is_a_function_of_seed_and_epoch(make: Any) -> None:
    orders = {
        (seed, epoch): np.concatenate(make(seed=seed).order(epoch)).tolist()
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    data = make(seed=2)
    data.order(0)  # what was asked before changes nothing
    assert np.concatenate(data.order(1)).tolist() == orders[2, 1]
    assert len({tuple(order) for order in orders.values()}) == 4


def test_every_example_comes_once_an_epoch(make: Any) -> None:
    data = make(batch_size=7)
    for epoch in range(3):
        order = data.order(epoch)
        seen = np.concatenate(order)
        assert sorted(seen) == list(range(len(seen)))
        assert sum(len(batch) < 7 for batch in order) <= 1
        assert len(order) == data.batches_per_epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_can_start_at_any_batch(workers: int, make: Any) -> None:
    whole = batches(make(), epoch=2)
    for start in (1, len(whole) - 1):
        data = make(workers=workers)
        data.start_at(TrainingProgress(epoch=2, batch=start))
        assert_equal(batches(data, epoch=2), whole[start:])
    assert_equal(batches(data, epoch=3), batches(make(), epoch=3))  # later epochs are whole


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 1), (1, 3), (4, 2)])
def test_a_batch_is_divided_among_processes_and_micro_batches(
    ranks: int, micro_batches: int, make: Any
) -> None:
    data = make(batch_size=24)
    whole, order = batches(data, epoch=1), data.order(1)
    assert min(map(len, order)) < 24  # the last one to be cut
    data.config.micro_batches = micro_batches
    each = [batches(data, epoch=1, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert {len(own) for own in each} == {len(order) * micro_batches}
    assert data.micro_batches_per_epoch == len(order) * micro_batches
    for step, batch in enumerate(whole):
        own = slice(step * micro_batches, (step + 1) * micro_batches)
        parts = [part for loaded in each for part in loaded[own] if FILLER not in part]
        assert_same_rows(parts, batch)
        sizes = [len(part["input_ids"]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def assert_same_rows(parts: list[Batch], batch: Batch) -> None:
    """The parts have the rows of the batch, each once."""

    def rows(batch: Batch) -> list[list[int]]:
        ids = batch["input_ids"]
        return [row[row > 0].tolist() for row in ids]  # without padding

    assert sorted(sum(map(rows, parts), [])) == sorted(rows(batch))
    assert sum(len(part["labels"]) for part in parts) == len(batch["labels"])


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_of_a_batch_have_like_lengths_and_tokens(parts: int, task_data: Any) -> None:
    data = task_data(batch_size=32)
    lengths = np.random.default_rng(0).integers(3, 129, 1000)
    data._training_lengths = lengths
    for batch in length_batches(lengths, 32, seed=1, epoch=0):
        dealt = data.divide(batch, parts)
        longest = [lengths[part].max() for part in dealt]
        tokens = [len(part) * lengths[part].max() / (32 / parts) for part in dealt]  # padded
        step = np.diff(np.sort(lengths[batch])).max()  # between one unit and the next
        assert max(longest) - min(longest) <= step * parts
        assert sorted(np.concatenate(dealt)) == sorted(batch)
        assert len(batch) < 32 or max(tokens) - min(tokens) <= 0.1 * max(tokens) + step * parts


def test_what_stays_whole_keeps_its_order(make: Any) -> None:
    data = make()
    for batch in data.order(0):
        assert data.divide(batch, 1)[0].tolist() == batch.tolist()


def test_a_process_can_start_in_mid_epoch(make: Any) -> None:
    data = make()
    data.start_at(TrainingProgress(epoch=1, batch=2))
    whole = batches(make(), epoch=1, rank=1, ranks=2)
    assert_equal(batches(data, epoch=1, rank=1, ranks=2), whole[2:])


def test_fewer_examples_than_processes_are_filled_up(make: Any) -> None:
    data = make(batch_size=1000)
    count = len(data.order(0)[0])
    each = [batches(data, rank=rank, ranks=count + 2) for rank in range(count + 2)]
    assert [len(own) for own in each] == [1] * (count + 2)
    assert [FILLER in own[0] for own in each] == [False] * count + [True] * 2
    assert all(float(labels_of(own[0])) == 0 for own in each[count:])


def test_fillers_come_from_workers_too(task_data: Any) -> None:
    data = task_data(batch_size=1000, workers=2)
    (filler,) = batches(data, rank=999, ranks=1000)
    assert torch.equal(filler[FILLER], torch.ones(1))


def test_a_batch_with_fewer_examples_than_parts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"batch_size 7: expected at least 8, .*devices \(4\) × "):
        check_parts(LoaderConfig(batch_size=7, micro_batches=2), 4)
    check_parts(LoaderConfig(batch_size=8, micro_batches=2), 4)


def test_a_trainer_that_does_not_accumulate_the_micro_batches_is_refused(make: Any) -> None:
    data = make()
    data.config.micro_batches = 2
    data.trainer = SimpleNamespace(accumulate_grad_batches=3, world_size=1)
    with pytest.raises(ConfigError, match="a batch has 2 micro-batches, and the Trainer accumul"):
        data.setup("fit")


def test_the_loader_leaves_the_generator_of_dropout_alone(make: Any) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches(make())
    assert torch.equal(torch.rand(3), expected)


def rows_by_block(data: CorpusData, epoch: int) -> dict[int, tuple[list[int], list[int]]]:
    """Block number -> its masked ids, and the labels at its masked places."""
    rows = {}
    numbers = data.order(epoch)
    for indices, batch in zip(numbers, batches(data, epoch=epoch), strict=True):
        length = batch["input_ids"].shape[1]
        owners = batch["positions"] // length
        for row, block in enumerate(indices.tolist()):
            labels = batch["labels"][owners == row].tolist()
            rows[block] = (batch["input_ids"][row].tolist(), labels)
    return rows


def test_masks_of_a_block_do_not_depend_on_its_batch(corpus_data: Any) -> None:
    expected = rows_by_block(corpus_data(batch_size=8), 0)
    assert rows_by_block(corpus_data(batch_size=5), 0) == expected
    assert rows_by_block(corpus_data(batch_size=8, workers=2), 0) == expected
    assert rows_by_block(corpus_data(batch_size=8), 1) != expected  # anew in each epoch
    assert rows_by_block(corpus_data(batch_size=8, seed=2), 0) != expected


def test_static_masks_stay_the_same(corpus_data: Any) -> None:
    data = corpus_data(masking=MaskingConfig(masks="static"))
    assert rows_by_block(data, 0) == rows_by_block(data, 1)


def test_masked_places_hold_the_original_ids_as_labels(corpus_data: Any, blocks: Corpus) -> None:
    data = corpus_data()
    for indices, batch in zip(data.order(0), batches(data), strict=True):
        original = torch.from_numpy(blocks.train.blocks(indices).input_ids)
        restored = batch["input_ids"].flatten().clone()
        restored[batch["positions"]] = batch["labels"]
        assert torch.equal(restored.view_as(original), original)
        assert 0 < len(batch["positions"]) <= 0.25 * original.numel()


def test_a_causal_batch_names_each_next_token_but_the_frame(
    corpus_data: Any, blocks: Corpus
) -> None:
    data = corpus_data(causal=True)
    indices, batch = data.order(0)[0], batches(data)[0]
    original = torch.from_numpy(blocks.train.blocks(indices).input_ids)
    assert torch.equal(batch["input_ids"], original)
    assert torch.equal(batch["labels"].view(len(indices), -1), original[:, 1:-1])
    assert torch.equal(batch["positions"] % 16, torch.arange(14).repeat(len(indices)))


@pytest.fixture
def separate(corpus: Path, tokenizer: Tokenizer, tmp_path: Path) -> Corpus:
    config = CorpusConfig(max_length=16, validation_fraction=0.1, documents="separate")
    return build_corpus([corpus], tokenizer, config, 1, tmp_path / "separate")


def test_separate_documents_do_not_see_each_other(corpus_data: Any, separate: Corpus) -> None:
    data = corpus_data(corpus=separate, separate=True)
    indices, batch = data.order(0)[0], batches(data)[0]
    documents = separate.train.blocks(indices).document_ids
    assert documents.max() > 0
    same = documents[:, :, None] == documents[:, None, :]
    assert np.array_equal(batch["attention_mask"].numpy(), same)
    assert batch["attention_mask"].dtype == torch.bool
    for row, positions in zip(documents, batch["position_ids"].tolist(), strict=True):
        pieces = [np.arange((row == number).sum()) for number in range(row.max() + 1)]
        assert positions == np.concatenate(pieces).tolist()


def test_separate_documents_are_not_to_foretell_each_other(
    corpus_data: Any, separate: Corpus
) -> None:
    data = corpus_data(corpus=separate, separate=True, causal=True)
    indices, batch = data.order(0)[0], batches(data)[0]
    documents = torch.from_numpy(separate.train.blocks(indices).document_ids).flatten()
    assert torch.equal(documents[batch["positions"]], documents[batch["positions"] + 1])
    inside = (documents.view(-1, 16)[:, :-1].diff(dim=1) == 0).sum()
    assert len(batch["positions"]) == inside


def test_validation_has_the_first_blocks_under_the_same_masks_each_time(
    corpus_data: Any, blocks: Corpus
) -> None:
    data = corpus_data(batch_size=4)
    first, again = list(data.val_dataloader()), list(in_process(data, epoch=3).val_dataloader())
    assert_equal(first, again)
    assert len(first) == 3  # validation_batches
    ids = torch.cat([batch["input_ids"] for batch in first])
    assert ids.shape == (12, 16)
    unmasked = torch.from_numpy(blocks.validation.blocks(range(12)).input_ids)
    assert 0.75 < (ids == unmasked).float().mean() < 1


def test_a_corpus_without_validation_blocks_has_no_validation(
    corpus_data: Any, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = CorpusConfig(max_length=16, validation_fraction=0.0)
    whole = build_corpus([corpus], tokenizer, config, 1, tmp_path / "whole")
    assert corpus_data(corpus=whole).val_dataloader() == []


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples each call of the task's `features` got."""
    calls: list[int] = []
    features = GlueTask.features

    def counting(self: GlueTask, examples: Any, *rest: Any, training: bool) -> list[Features]:
        calls.append(len(examples))
        return features(self, examples, *rest, training=training)

    monkeypatch.setattr(GlueTask, "features", counting)
    return calls


def test_texts_are_tokenized_once(task_data: Any, tokenized: list[int]) -> None:
    first = task_data().features("train")
    again = task_data().features("train")
    assert tokenized == [90]
    assert again == first
    assert all(isinstance(feature.label, int) for feature in again)


@pytest.mark.parametrize("damage", ["cut short", "emptied", "overwritten"])
def test_a_damaged_cache_file_is_made_anew(
    damage: str, task_data: Any, tokenized: list[int], tmp_path: Path
) -> None:
    expected = task_data().features("validation")
    (file,) = (tmp_path / "features").iterdir()
    content = file.read_bytes()
    spoiled = {"cut short": content[:-40], "emptied": b"", "overwritten": b"PK" + b"x" * 999}
    file.write_bytes(spoiled[damage])
    with pytest.warns(UserWarning, match="damaged; computing it again"):
        assert task_data().features("validation") == expected
    assert tokenized == [30, 30]
    assert file.read_bytes() == content


def test_the_cache_knows_texts_tokenizer_and_length_apart(
    task_data: Any, tokenized: list[int], data: Path, tmp_path: Path
) -> None:
    from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

    file = tmp_path / "dev.tsv"
    lines = (data / "glue_data" / "SST-2" / "dev.tsv").read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], "the house\t1"]) + "\n")
    other = train_tokenizer(["a cat sees a dog"] * 9, TokenizerConfig(vocab_size=20))
    task_data().features("validation")
    task_data(max_length=8).features("validation")
    task_data(tokenizer=other).features("validation")
    task_data(task=glue_task("sst2", data, {"validation": file})).features("validation")
    assert tokenized == [30] * 4
    assert len(list((tmp_path / "features").iterdir())) == 4


@pytest.mark.parametrize("labels", [[0, 1, 2], [0.5, 4.25, 3.0], [None, None, None]])
def test_features_come_back_from_their_file_with_labels_of_their_type(
    labels: list[Any], tmp_path: Path
) -> None:
    rows = [([1, 2, 70000], [0, 0, 1]), ([5], [0]), ([7, 8], [0, 1])]
    features = [Features(*row, label) for row, label in zip(rows, labels, strict=True)]
    save_features(features, tmp_path / "cache" / "x.npz")
    read = load_features(tmp_path / "cache" / "x.npz")
    assert read == features
    assert [type(feature.label) for feature in read or []] == [type(label) for label in labels]
    assert load_features(tmp_path / "none.npz") is None


def test_padding_is_that_of_the_batches(task_data: Any) -> None:
    data = task_data()
    real = sum(len(feature.input_ids) for feature in data.features("train"))
    places = sum(batch["input_ids"].numel() for batch in batches(data))
    about = data.description()
    assert about["padding"] == pytest.approx(1 - real / places)
    assert about["padding"] < 0.05
    assert about["train"]["examples"] == 90
    assert about["train"]["files"] == [str(data.task.data_files("train")[0])]


def test_batches_of_a_split_hold_every_example_with_its_number(task_data: Any) -> None:
    data = task_data()
    found = list(data.loader("validation"))
    numbers = torch.cat([batch["index"] for batch in found]).tolist()
    assert sorted(numbers) == list(range(30))
    lengths = [batch["input_ids"].shape[1] for batch in found]
    assert lengths == sorted(lengths, reverse=True)
    features = data.features("validation")
    for batch in found:
        assert batch["labels"].tolist() == [features[number].label for number in batch["index"]]


def test_an_empty_split_is_an_error(task_data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GlueTask, "examples", lambda self, split: [])
    with pytest.raises(DataError, match="glue/sst2: the train split has no examples"):
        task_data().examples("train")


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("num_workers", -1), ("validation_batches", 0)]
)
def test_a_count_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number from .*, got {value}"):
        LoaderConfig(**{name: value})


def labelled(labels: Iterable[Any]) -> list[Example]:
    return [Example(n, (f"text {n}",), label) for n, label in enumerate(labels)]


def test_training_examples_are_drawn_in_proportion_and_nested() -> None:
    examples = labelled("rare" if n % 10 == 0 else "often" for n in range(1000))
    drawn = {count: stratified(examples, count, 1) for count in (10, 100, 500, 1000)}
    for count, some in drawn.items():
        assert len(some) == count
        assert sum(one.label == "rare" for one in some) == count // 10
        assert [one.id for one in some] == sorted(one.id for one in some)  # type: ignore[type-var]
    ids = {count: {one.id for one in some} for count, some in drawn.items()}
    assert ids[10] < ids[100] < ids[500] < ids[1000]
    assert stratified(examples, 100, 1) == drawn[100]
    assert stratified(examples, 100, 2) != drawn[100]


def test_numbers_and_questions_are_drawn_over_their_range() -> None:
    numbers = [one.label for one in stratified(labelled(n / 7 for n in range(1000)), 20, 3)]
    assert sum(float(str(number)) < 500 / 7 for number in numbers) == 10
    golds = (GoldAnswer("a", 0),)
    questions = labelled(() if n % 4 == 0 else golds for n in range(100))
    assert sum(one.label == () for one in stratified(questions, 20, 3)) == 5


def test_limited_examples_are_a_fixed_draw_in_their_order() -> None:
    from finetune.task.drawing import limited

    examples = [Example(number, ("text",)) for number in range(20)]
    few = limited(examples, 5)
    assert few == limited(examples, 5)
    assert [example.id for example in few] == sorted(example.id for example in few)
    assert len(few) == 5
    assert limited(examples, None) == limited(examples, 20) == examples
