from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.errors import ConfigError
from finetune.text.features.long_texts import longest_first
from finetune.text.features.pairs import (
    IGNORED,
    Features,
    collate,
    encode_pairs,
    length_batches,
    padding_share,
)
from finetune.text.tokenizer.tokenizer import Tokenizer

FIRSTS = ["bade fi, golu", "mar", "", "Sil ta vo " * 20, "naïve café"]
SECONDS = ["vo", "bade fi " * 30, "nera", "Sil ta vo " * 20, ""]


@pytest.fixture(scope="module")
def theirs(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("max_length", [5, 16, 17, 512])
@pytest.mark.parametrize("pair", [False, True])
def test_features_are_those_of_transformers(
    tokenizer: Tokenizer, theirs: Any, pair: bool, max_length: int
) -> None:
    seconds = SECONDS if pair else None
    expected = theirs(FIRSTS, seconds, truncation=True, max_length=max_length,
                      return_token_type_ids=True)  # fmt: skip
    found = encode_pairs(tokenizer, FIRSTS, seconds, max_length)
    assert [row.input_ids for row in found] == expected["input_ids"]
    assert [row.token_type_ids for row in found] == expected["token_type_ids"]


def test_features_of_a_roberta_tokenizer_are_those_of_transformers(roberta: Path) -> None:
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(roberta)(
        ["some text"], ["more"], return_token_type_ids=True
    )
    (found,) = encode_pairs(Tokenizer.load(roberta), ["some text"], ["more"], 99)
    assert found.input_ids == expected["input_ids"][0]
    assert found.token_type_ids == expected["token_type_ids"][0]


@settings(deadline=None)
@given(first=st.integers(0, 30), second=st.integers(0, 30), room=st.integers(2, 40))
def test_longest_text_is_cut_first_as_the_library_does(
    wordpiece: Tokenizer, first: int, second: int, room: int
) -> None:
    theirs = copy.deepcopy(wordpiece.backend)
    theirs.enable_truncation(room + 3, strategy="longest_first")
    encoding = theirs.encode("ba " * first, "de " * second)
    kept = tuple(encoding.sequence_ids.count(text) for text in (0, 1))
    assert longest_first(first, second, room) == kept


def test_texts_without_room_are_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="max_length 2 leaves no space for text: 2 tokens"):
        encode_pairs(tokenizer, FIRSTS, None, 2)
    with pytest.raises(ConfigError, match="max_length 4 leaves no space for text: 3 tokens"):
        encode_pairs(tokenizer, FIRSTS, SECONDS, 4)


def test_no_texts_give_no_features(tokenizer: Tokenizer) -> None:
    assert encode_pairs(tokenizer, [], None, 16) == []


# Lengths like those of GLUE's tasks: examples, median, spread of the logarithm, longest.
TASKS = {
    "cola": (8551, 11, 0.4, 50),
    "sst2": (67_349, 10, 0.75, 66),
    "mrpc": (3668, 52, 0.3, 110),
    "stsb": (5749, 27, 0.5, 125),
    "rte": (2490, 60, 0.6, 256),
}


def made_lengths(task: str) -> Any:
    count, median, spread, longest = TASKS[task]
    drawn = np.random.default_rng(0).lognormal(np.log(median), spread, count)
    return np.clip(np.rint(drawn), 4, longest).astype(np.int64)


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("batch_size", [16, 32])
@pytest.mark.parametrize("shuffle", [False, True])
def test_padding_is_at_most_a_twentieth(task: str, batch_size: int, shuffle: bool) -> None:
    lengths = made_lengths(task)
    batches = length_batches(lengths, batch_size, seed=1, epoch=0, shuffle=shuffle)
    assert padding_share(lengths, batches) <= 0.05


@settings(deadline=None)
@given(
    count=st.integers(0, 300),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_each_example_is_in_one_batch(
    count: int, batch_size: int, seed: int, epoch: int, shuffle: bool
) -> None:
    lengths = np.random.default_rng(count).integers(1, 50, count)
    batches = length_batches(lengths, batch_size, seed=seed, epoch=epoch, shuffle=shuffle)
    assert sorted(np.concatenate([[], *batches]).tolist()) == list(range(count))
    assert len(batches) == -(-count // batch_size)
    assert sum(len(batch) < batch_size for batch in batches) <= 1


def test_batches_are_a_pure_function_of_seed_and_epoch() -> None:
    lengths = made_lengths("cola")

    def order(seed: int, epoch: int) -> list[int]:
        batches = length_batches(lengths, 32, seed=seed, epoch=epoch)
        return [int(index) for index in np.concatenate(batches)]

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed, epoch in ((1, 0), (1, 1), (2, 0))}) == 3


def test_shuffled_batches_are_in_no_order_of_length() -> None:
    lengths = made_lengths("sst2")
    batches = length_batches(lengths, 32, seed=1, epoch=0)
    means = [lengths[batch].mean() for batch in batches]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.1


def test_evaluation_batches_are_sorted_the_longest_first() -> None:
    lengths = np.array([3, 9, 5, 9, 1])
    batches = length_batches(lengths, 2, seed=1, epoch=0, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[1, 3], [2, 0], [4]]


def test_padding_share_counts_what_collate_pads() -> None:
    lengths = np.array([3, 4, 8])
    batches = [np.array([0, 1]), np.array([2])]
    assert padding_share(lengths, batches) == pytest.approx(1 / 16)
    assert padding_share(lengths, batches, multiple=8) == pytest.approx(9 / 24)
    assert padding_share(lengths, []) == 0


FEATURES = [
    Features([1, 5, 2], [0, 0, 0], 1),
    Features([1, 6, 2, 7, 2], [0, 0, 0, 1, 1], 0),
    Features([1, 8, 2], [0, 0, 0], 2),
]


def test_batch_is_padded_to_its_longest_row() -> None:
    batch = collate(FEATURES, [1, 0], pad_token_id=9)
    assert batch["index"].tolist() == [1, 0]
    assert batch["input_ids"].tolist() == [[1, 6, 2, 7, 2], [1, 5, 2, 9, 9]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch["labels"].tolist() == [0, 1]


def test_batch_has_the_types_that_torch_wants() -> None:
    batch = collate(FEATURES, np.array([0, 1]), pad_token_id=0)
    kinds = {name: tensor.dtype for name, tensor in batch.items()}
    assert kinds.pop("attention_mask") == torch.bool
    assert set(kinds.values()) == {torch.int64}
    numbers = collate([Features([1], [0], 2.5)], [0], pad_token_id=0)
    assert numbers["labels"].dtype == torch.float32


def test_batch_without_padding_has_no_mask() -> None:
    batch = collate(FEATURES, [0, 2], pad_token_id=0)
    assert "attention_mask" not in batch


def test_batch_without_labels_has_none() -> None:
    assert "labels" not in collate([Features([1], [0])], [0], pad_token_id=0)


def test_length_is_rounded_up_when_asked() -> None:
    batch = collate(FEATURES, [0, 2], pad_token_id=0, multiple=8)
    assert batch["input_ids"].shape == (2, 8)
    assert batch["attention_mask"].sum() == 6


def test_what_does_not_fit_is_counted(tokenizer: Tokenizer) -> None:
    texts = ["the cat", "the cat sees the dog and the bird"]
    full = [len(ids) for ids in tokenizer.encode_ids(texts)]
    singles = encode_pairs(tokenizer, texts, None, max_length=6)
    assert [feature.trimmed for feature in singles] == [max(0, n - 4) for n in full]
    pairs = encode_pairs(tokenizer, texts, texts[::-1], max_length=9)
    assert [feature.trimmed for feature in pairs] == [max(0, sum(full) - 6)] * 2
    assert encode_pairs(tokenizer, texts, None, max_length=64)[1].trimmed == 0


def test_rows_of_a_unit_stay_together() -> None:
    lengths = [3, 5, 2, 4, 2, 2]
    features = [
        Features([2] + [7 + n] * (length - 1), [0] * length, label=n // 2)
        for n, length in enumerate(lengths)
    ]
    batch = collate(features, [2, 0], pad_token_id=0, rows=2)
    assert batch["index"].tolist() == [2, 0]
    assert batch["labels"].tolist() == [2, 0]
    assert batch["input_ids"][:, 1].tolist() == [11, 12, 7, 8]
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 2, 3, 5]


@pytest.mark.parametrize(
    ("label", "dtype"), [((3, 4), torch.int64), ([1.0, 0.0, 1.0], torch.float32)]
)
def test_a_label_of_several_numbers_is_a_row(label: Any, dtype: torch.dtype) -> None:
    features = [Features([2, 3], [0, 0], label), Features([2, 3], [0, 0], label)]
    labels = collate(features, [1, 0], pad_token_id=0)["labels"]
    assert labels.dtype == dtype
    assert labels.tolist() == [list(label)] * 2


def test_where_an_answer_may_lie_is_in_the_batch() -> None:
    features = [Features([2, 9, 3, 7, 3], [0, 0, 0, 1, 1], (0, 0), context=(3, 4))]
    assert collate(features, [0], pad_token_id=0)["context"].tolist() == [[3, 4]]
    assert "context" not in collate([Features([2, 3], [0, 0])], [0], pad_token_id=0)


def test_targets_are_read_by_the_decoder_and_said_a_token_later() -> None:
    features = [
        Features([2, 3], [0, 0], target=[2, 7, 8, 3]),
        Features([2, 3], [0, 0], target=[2, 9, 3]),
    ]
    batch = collate(features, [1, 0], pad_token_id=0)
    assert batch["decoder_input_ids"].tolist() == [[2, 9, 0], [2, 7, 8]]
    assert batch["labels"].tolist() == [9, 3, IGNORED, 7, 8, 3]
    assert features[0] != Features([2, 3], [0, 0], target=[2, 7, 9, 3])
