"""Several corpora are drawn in the proportions of their weights, by a pure function."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from finetune.errors import ConfigError, DataError
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.corpus.mixture import ROUND, MixedBlocks, mixed_once, pattern, weights_of
from finetune.text.corpus.sources import corpus_sources, split_weight
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.text.conftest import made_documents

CONFIG = CorpusConfig(max_length=16, validation_fraction=0.1)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A large, a middling and a small corpus."""
    folder = tmp_path_factory.mktemp("corpora")
    files = [folder / name for name in ("large.txt", "middling.txt", "small.txt")]
    for number, (file, count) in enumerate(zip(files, (400, 150, 40), strict=True)):
        file.write_text("\n\n".join(made_documents(count, seed=number)), encoding="utf-8")
    return files


def build(names: list[str], tokenizer: Tokenizer, cache: Path, seed: int = 1) -> Corpus:
    return build_corpus(names, tokenizer, CONFIG, seed, cache)


@pytest.fixture(scope="module")
def mixture(
    paths: list[Path], wordpiece: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Corpus:
    names = [f"{path}:{weight}" for path, weight in zip(paths, (5, 3, 2), strict=True)]
    return build(names, wordpiece, tmp_path_factory.mktemp("cache"))


def drawn(blocks: Any, epoch: int) -> tuple[Any, Any]:
    assert isinstance(blocks, MixedBlocks)
    return blocks.of_epoch(epoch).drawn(np.arange(len(blocks)))


def test_pattern_has_each_input_as_often_as_its_weight_says_and_evenly() -> None:
    weights = [0.7, 0.25, 0.05]
    owners = pattern(weights)
    assert np.bincount(owners).tolist() == [11469, 4096, 819]
    for start in range(0, ROUND - 200, 97):  # in any 200 places
        counts = np.bincount(owners[start : start + 200], minlength=3)
        assert counts == pytest.approx(np.array(weights) * 200, abs=2)


def test_corpora_of_one_length_are_drawn_in_orders_of_their_own() -> None:
    parts: Any = ([None] * 50, [None] * 50)
    owners, numbers = MixedBlocks(parts, (0.5, 0.5), 1, 100).drawn(np.arange(100))
    orders = [numbers[owners == owner] for owner in (0, 1)]
    assert [sorted(order) for order in orders] == [list(range(50))] * 2
    assert not np.array_equal(*orders)


def test_blocks_are_drawn_in_the_proportions_of_the_weights(mixture: Corpus) -> None:
    total = np.zeros(3)
    for epoch in range(4):
        owners, _ = drawn(mixture.train, epoch)
        assert len(owners) == sum(one.blocks for one in mixture.inputs)
        counts = np.bincount(owners, minlength=3)
        assert counts / len(owners) == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
        total += counts
    assert total / total.sum() == pytest.approx([0.5, 0.3, 0.2], abs=0.002)


def test_each_block_is_read_once_before_one_is_read_twice(mixture: Corpus) -> None:
    draws: dict[int, list[int]] = {owner: [] for owner in range(3)}
    for epoch in range(6):
        for owner, number in zip(*drawn(mixture.train, epoch), strict=True):
            draws[owner].append(int(number))
    for owner, part in enumerate(mixture.inputs):
        numbers = draws[owner]
        assert max(numbers) < part.blocks
        for start in range(0, len(numbers) - part.blocks + 1, part.blocks):
            one_pass = numbers[start : start + part.blocks]
            assert sorted(one_pass) == list(range(part.blocks))
            assert one_pass != sorted(one_pass)
    small = mixture.inputs[2].blocks
    assert draws[2][:small] != draws[2][small : 2 * small]  # each pass has an order of its own


def test_block_of_a_place_does_not_depend_on_what_was_asked_before(mixture: Corpus) -> None:
    train = mixture.train.of_epoch(3)
    whole = train.blocks(np.arange(len(train)))
    chosen = np.random.default_rng(0).permutation(len(train))[:50]
    again = pickle.loads(pickle.dumps(train)).blocks(chosen)  # as a worker or another process
    for name in ("input_ids", "word_starts", "document_ids"):
        assert np.array_equal(getattr(again, name), getattr(whole, name)[chosen])
    assert np.array_equal(train.block(7).input_ids, whole.input_ids[7])


def test_drawn_blocks_are_those_of_the_corpora(
    mixture: Corpus, paths: list[Path], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    alone = [build([str(path)], wordpiece, tmp_path) for path in paths]
    owners, numbers = drawn(mixture.train, 2)
    blocks = mixture.train.of_epoch(2).blocks(np.arange(len(owners)))
    for place in range(0, len(owners), 7):
        block = alone[owners[place]].train.block(numbers[place])
        assert np.array_equal(blocks.input_ids[place], block.input_ids)


def test_other_seeds_and_epochs_draw_other_blocks(
    mixture: Corpus, paths: list[Path], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    names = [f"{path}:{weight}" for path, weight in zip(paths, (5, 3, 2), strict=True)]
    other = build(names, wordpiece, tmp_path, seed=2)
    assert other.fingerprint != mixture.fingerprint
    first = drawn(mixture.train, 0)[1]
    for another in (drawn(mixture.train, 1)[1], drawn(other.train, 0)[1]):
        length = min(len(first), len(another))
        assert np.mean(first[:length] == another[:length]) < 0.1


def test_validation_reads_no_block_twice_and_as_many_as_there_are(mixture: Corpus) -> None:
    assert isinstance(mixture.validation, MixedBlocks)
    owners, numbers = drawn(mixture.validation, 0)
    assert len(owners) > 10
    assert len(set(zip(owners.tolist(), numbers.tolist(), strict=True))) == len(owners)
    lengths = [len(part) for part in mixture.validation.parts]
    assert any(np.bincount(owners, minlength=3) == lengths)
    longer = mixed_once([range(40_000), range(90_000)], [0.5, 0.5], 1)  # type: ignore[list-item]
    assert longer.length == pytest.approx(80_000, abs=1)


def test_statistics_are_sums_and_the_entropy_that_of_what_is_drawn(
    mixture: Corpus, paths: list[Path], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    alone = [build([str(path)], wordpiece, tmp_path) for path in paths]
    for name in ("documents", "validation_documents", "tokens", "train_blocks"):
        total = sum(getattr(part.statistics, name) for part in alone)
        assert getattr(mixture.statistics, name) == total
    ids = mixture.train.blocks(np.arange(len(mixture.train))).input_ids
    counts = Counter(ids.reshape(-1).tolist())
    for special in wordpiece.special_ids:
        del counts[special]
    entropy = stats.entropy(list(counts.values()))
    assert mixture.statistics.unigram_entropy == pytest.approx(entropy, abs=0.02)
    small = mixture.inputs[2]
    assert small.passes == pytest.approx(0.2 * len(mixture.train) / small.blocks)
    assert "small.txt:2: 20.0% of the blocks" in small.as_text()


def test_weights_need_not_sum_to_one_and_one_alone_is_all(
    paths: list[Path], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    assert weights_of(["a:7", "b:3"]) == weights_of(["a:0.7", "b:0.3"]) == [0.7, 0.3]
    corpus = build([f"{paths[2]}:3"], wordpiece, tmp_path)
    assert corpus.inputs[0].passes == 1
    assert sorted(drawn(corpus.train, 0)[1]) == list(range(len(corpus.train)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a:0.7", ("a", 0.7)),
        ("a.txt:1e-3", ("a.txt", 0.001)),
        (r"C:\texts", (r"C:\texts", None)),
        (r"C:\texts:0.5", (r"C:\texts", 0.5)),
        ("hf://imdb", ("hf://imdb", None)),
        ("hf://a/b@c:train:text", ("hf://a/b@c:train:text", None)),
        ("hf://a/b@c:train:0.25", ("hf://a/b@c:train", 0.25)),
        ("a", ("a", None)),
        (":0.5", (":0.5", None)),
    ],
)
def test_weight_stands_after_the_last_colon(name: str, expected: tuple[str, float | None]) -> None:
    assert split_weight(name) == expected


def test_path_that_exists_has_no_weight(tmp_path: Path) -> None:
    folder = tmp_path / "a:0.5"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    assert split_weight(str(folder)) == (str(folder), None)
    assert corpus_sources([str(folder)]) == [folder / "a.txt"]
    assert split_weight(f"{folder}:2") == (str(folder), 2.0)
    assert corpus_sources([f"{folder}:2"]) == [folder / "a.txt"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a:0.5", "b"], "a weight for every input or for none, got none for 'b'; add .* 'b:1'"),
        (["a:0"], "expected a weight above 0 after the colon, got 'a:0'"),
        (["a:-1", "b:2"], "expected a weight above 0 after the colon, got 'a:-1'"),
        (["a:nan"], "expected a weight above 0"),
        (["a:inf"], "expected a weight above 0"),
        (["a:1", "b:1e-9"], "got 'b:1e-9' in a sum of 1; leave this input out"),
    ],
)
def test_bad_weight_is_an_error_in_one_line(names: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        weights_of(names)
    assert "\n" not in str(error.value)


def test_what_is_no_number_after_a_path_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ConfigError, match=r"expected .*a.txt:WEIGHT, .* got '.*a.txt:half'"):
        split_weight(f"{tmp_path}/a.txt:half")


def test_weighted_input_without_a_block_is_named(
    paths: list[Path], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "tiny.txt").write_text("bade fi")
    with pytest.raises(DataError, match=r"tiny.txt:1: \d tokens are less than one block"):
        build([f"{paths[0]}:1", f"{tmp_path}/tiny.txt:1"], wordpiece, tmp_path / "cache")
