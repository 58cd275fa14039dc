from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.text.corpus import tokens as tokens_module
from finetune.text.corpus.shards import Tokens
from finetune.text.corpus.split import Split, choose_threshold, count_training_tokens, write_split
from finetune.text.corpus.tokens import TokenCounts


def make_tokens(folder: Path, lengths: NDArray[np.int64], digests: NDArray[np.uint64]) -> Tokens:
    """Documents of `lengths` ids, framed; the ids of document n are n modulo 7."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.repeat(np.arange(len(lengths)) % 7, lengths).astype(np.uint16)
    tokens = Tokens(
        folder,
        TokenCounts(len(lengths), len(ids), 0, 0, 0),
        wide=False,
        shards=((len(lengths), len(ids)),),
    )
    shard = tokens.shard(0)
    shard.mkdir(parents=True, exist_ok=True)
    ids.tofile(shard / "ids.bin")
    bounds.tofile(shard / "bounds.bin")
    digests.astype(np.uint64).tofile(shard / "digests.bin")
    return tokens


def divide(tokens: Tokens, split: Split) -> tuple[set[int], set[int]]:
    """First ids of the training and the validation documents."""
    write_split(tokens, split, choose_threshold(tokens, split), tokens.path)
    sides = []
    for side in ("train", "validation"):
        starts = np.fromfile(tokens.path / f"{side}.starts", np.int64)
        sources = np.fromfile(tokens.path / f"{side}.sources", np.int64)
        assert len(starts) == len(sources) + 1
        sides.append(set((sources - split.skipped).tolist()))
    return sides[0], sides[1]


LENGTHS = np.random.default_rng(0).integers(3, 40, 4000)
DIGESTS = np.random.default_rng(1).integers(0, 2**63, 4000).astype(np.uint64)


def test_each_document_is_on_one_side(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    train, validation = divide(tokens, Split(seed=1, fraction=0.1, skipped=1, block=20))
    assert not train & validation
    assert sorted(train | validation) == [0, *np.cumsum(LENGTHS)[:-1].tolist()]


@pytest.mark.parametrize("fraction", [0.02, 0.3])
def test_share_held_out_is_near_the_fraction(tmp_path: Path, fraction: float) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    _, validation = divide(tokens, Split(seed=1, fraction=fraction, skipped=0, block=20))
    deviation = np.sqrt(fraction * (1 - fraction) / 4000)
    assert abs(len(validation) / 4000 - fraction) < 4 * deviation


def test_slices_do_not_change_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    split = Split(seed=1, fraction=0.1, skipped=1, block=20)
    threshold = choose_threshold(tokens, split)
    counts = count_training_tokens(tokens, split, threshold, 7)
    write_split(tokens, split, threshold, tmp_path)
    names = ("train.starts", "train.sources", "validation.starts", "validation.sources")
    before = [(tmp_path / name).read_bytes() for name in names]
    monkeypatch.setattr(tokens_module, "SLICE", 97)
    write_split(tokens, split, choose_threshold(tokens, split), tmp_path)
    assert [(tmp_path / name).read_bytes() for name in names] == before
    assert count_training_tokens(tokens, split, threshold, 7).tolist() == counts.tolist()


def test_side_of_a_document_hangs_on_its_text_alone(tmp_path: Path) -> None:
    split = Split(seed=1, fraction=0.1, skipped=0, block=20)
    tokens = make_tokens(tmp_path / "all", np.full(4000, 10), DIGESTS)
    held_out = {int(DIGESTS[place // 10]) for place in divide(tokens, split)[1]}
    kept = DIGESTS[::-1][:3000]
    fewer = make_tokens(tmp_path / "fewer", np.full(3000, 10), kept)
    still_held_out = {int(kept[place // 10]) for place in divide(fewer, split)[1]}
    assert still_held_out == held_out & set(kept.tolist())


def test_copies_of_a_text_are_on_the_same_side(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, np.full(4000, 10), np.repeat(DIGESTS[:2000], 2))
    train, validation = divide(tokens, Split(seed=1, fraction=0.1, skipped=0, block=20))
    for side in (train, validation):
        assert {place // 20 for place in side if place % 20} == {
            place // 20 for place in side if not place % 20
        }


def test_another_seed_holds_out_others(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    first, second = (
        divide(tokens, Split(seed=seed, fraction=0.1, skipped=0, block=20))[1] for seed in (1, 2)
    )
    assert len(first & second) < 0.3 * len(first)


def test_just_enough_is_held_out_for_one_block(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, np.full(100, 10), DIGESTS[:100])
    _, validation = divide(tokens, Split(seed=1, fraction=1e-9, skipped=0, block=25))
    assert len(validation) == 3


def test_nothing_is_held_out_where_training_would_keep_no_block(tmp_path: Path) -> None:
    for lengths in (np.array([100]), np.array([12, 12])):
        tokens = make_tokens(tmp_path, lengths, DIGESTS[: len(lengths)])
        train, validation = divide(tokens, Split(seed=1, fraction=0.5, skipped=0, block=20))
        assert (len(train), len(validation)) == (len(lengths), 0)


def test_training_keeps_a_block_whatever_the_fraction(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, np.full(6, 10), DIGESTS[:6])
    train, validation = divide(tokens, Split(seed=1, fraction=0.999, skipped=0, block=20))
    assert len(train) >= 2
    assert len(validation) >= 2


def test_fraction_of_zero_holds_nothing_out(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    assert divide(tokens, Split(seed=1, fraction=0, skipped=0, block=20))[1] == set()


def test_training_tokens_are_counted(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path, LENGTHS, DIGESTS)
    split = Split(seed=1, fraction=0.3, skipped=0, block=20)
    train, _ = divide(tokens, split)
    number = {int(place): n for n, place in enumerate(np.cumsum(LENGTHS) - LENGTHS)}
    expected = np.zeros(7, dtype=np.int64)
    for place in train:
        expected[number[place] % 7] += LENGTHS[number[place]]
    counts = count_training_tokens(tokens, split, choose_threshold(tokens, split), 7)
    assert counts.tolist() == expected.tolist()
