from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from finetune.text.corpus.packing import Block, Blocks, Packing, document_mask, document_positions
from finetune.text.corpus.shards import Tokens
from finetune.text.corpus.split import Split, write_split
from finetune.text.corpus.tokens import TokenCounts

CLS, SEP = 1, 2
LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=30)


def make_blocks(folder: Path, lengths: list[int], max_length: int, documents: str) -> Blocks:
    """Blocks of documents whose tokens are 10, 11, 12, ... through the whole corpus."""
    numbers = iter(range(10, 10 + sum(lengths)))
    texts = [[CLS, *(next(numbers) for _ in range(length)), SEP] for length in lengths]
    ids = np.array([number for text in texts for number in text], np.uint16)
    half = len(texts) // 2
    shards = [texts[:half], texts[half:]]
    sizes = tuple((len(shard), sum(map(len, shard))) for shard in shards)
    tokens = Tokens(folder, TokenCounts(len(texts), len(ids), 0, 0, 0), False, sizes)
    for number, shard in enumerate(shards):
        path = tokens.shard(number)
        path.mkdir()
        part = ids[tokens.starts[number] : tokens.starts[number + 1]]
        part.tofile(path / "ids.bin")
        (part % 3 != 0).tofile(path / "word_starts.bin")
        np.cumsum([0, *map(len, shard)]).astype(np.int64).tofile(path / "bounds.bin")
        np.arange(len(shard)).astype(np.uint64).tofile(path / "digests.bin")
    split = Split(seed=0, fraction=0, skipped=int(documents == "joined"), block=max_length - 2)
    write_split(tokens, split, 0.0, folder)
    return Blocks(tokens, folder / "train", Packing(max_length, CLS, SEP))


def make_stream(lengths: list[int], documents: str) -> tuple[list[int], list[int]]:
    """The stream as the module's docstring draws it, and the document of each token."""
    numbers = iter(range(10, 10 + sum(lengths)))
    stream, owners = [], []
    for owner, length in enumerate(lengths):
        text = [CLS] * (documents == "separate") + [next(numbers) for _ in range(length)] + [SEP]
        stream += text
        owners += [owner] * len(text)
    return stream, owners


@settings(deadline=None)
@given(
    lengths=LENGTHS,
    max_length=st.integers(3, 20),
    documents=st.sampled_from(["joined", "separate"]),
)
def test_each_token_is_in_exactly_one_block_in_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], max_length: int, documents: str
) -> None:
    blocks = make_blocks(tmp_path_factory.mktemp("tokens"), lengths, max_length, documents)
    stream, owners = make_stream(lengths, documents)
    content = max_length - 2
    assert len(blocks) == len(stream) // content
    for index, block in enumerate(blocks):
        piece = slice(index * content, (index + 1) * content)
        assert block.input_ids.tolist() == [CLS, *stream[piece], SEP]
        first = owners[piece][0]
        numbers = [owner - first for owner in owners[piece]]
        assert block.document_ids.tolist() == [0, *numbers, numbers[-1]]


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, data=st.data())
def test_blocks_at_once_are_the_blocks_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    blocks = make_blocks(tmp_path_factory.mktemp("tokens"), [30, *lengths], 8, "separate")
    indices = data.draw(st.lists(st.integers(0, len(blocks) - 1), min_size=1))
    stacked = blocks.blocks(indices)
    for row, index in enumerate(indices):
        single = blocks.block(index)
        for name in ("input_ids", "word_starts", "document_ids"):
            assert np.array_equal(getattr(stacked, name)[row], getattr(single, name))


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    return make_blocks(tmp_path, [5, 3, 9, 1, 12], 10, "joined")


def test_arrays_have_their_shapes_and_types(blocks: Blocks) -> None:
    block = blocks.blocks(np.array([0, 2, 1]))
    kinds: dict[str, Any] = {"input_ids": "int64", "word_starts": "bool", "document_ids": "int64"}
    for name, kind in kinds.items():
        array: NDArray[Any] = getattr(block, name)
        assert array.shape == (3, 10)
        assert array.dtype == kind


def test_special_tokens_and_the_first_token_start_words(blocks: Blocks) -> None:
    block = blocks.blocks(range(len(blocks)))
    expected = block.input_ids % 3 != 0
    expected[:, [0, 1, -1]] = True
    assert np.array_equal(block.word_starts, expected)


def test_block_beyond_the_end_is_an_error(blocks: Blocks) -> None:
    assert len(blocks) == 4
    for index in (-1, 4):
        with pytest.raises(IndexError, match=r"blocks go from 0 to 3, got \[0, -?\d\]"):
            blocks.blocks([0, index])


def test_no_indices_give_no_blocks(blocks: Blocks) -> None:
    assert blocks.blocks([]).input_ids.shape == (0, 10)


def test_split_without_documents_has_no_blocks(tmp_path: Path) -> None:
    tokens = make_blocks(tmp_path, [5], 10, "joined").tokens
    empty = Blocks(tokens, tmp_path / "validation", Packing(10, CLS, SEP))
    assert len(empty) == 0
    assert list(empty) == []


def test_blocks_are_pickled_without_their_arrays(blocks: Blocks) -> None:
    before = blocks.block(1)
    pickled = pickle.dumps(blocks)
    assert len(pickled) < 2000
    assert np.array_equal(pickle.loads(pickled).block(1).input_ids, before.input_ids)


def test_document_mask_lets_a_document_see_itself_only() -> None:
    mask = document_mask(np.array([[0, 0, 1]]))
    assert mask.tolist() == [[[True, True, False], [True, True, False], [False, False, True]]]


def test_document_positions_start_anew_in_each_document() -> None:
    positions = document_positions(np.array([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]]))
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]


def test_separate_documents_begin_and_end_with_special_tokens(tmp_path: Path) -> None:
    blocks = make_blocks(tmp_path, [5, 3, 9, 4, 12], 16, "separate")
    for block in blocks:
        pieces = _pieces(block)
        assert all(piece[0] == CLS and piece[-1] == SEP for piece in pieces)


def _pieces(block: Block) -> list[list[int]]:
    numbers = range(int(block.document_ids[-1]) + 1)
    return [block.input_ids[block.document_ids == number].tolist() for number in numbers]
