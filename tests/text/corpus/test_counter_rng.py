from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finetune.text.corpus.counter_rng import PermutedBatches, mix, permuted, random_bits, uniform


def test_hash_is_splitmix64() -> None:
    """Its first outputs for the seed 1234567, as published with Vigna's splitmix64.c."""
    gamma = 0x9E3779B97F4A7C15
    states = np.array([1234567 + step * gamma for step in range(3)], dtype=object) % 2**64
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert mix(states.astype(np.uint64)).tolist() == expected


def test_numbers_are_uniform_in_every_coordinate() -> None:
    grids = [
        random_bits(1, 0, np.arange(400)[:, None], 0, np.arange(256)[None]),
        random_bits(np.arange(100_000), 0, 7, 0, 3),
        random_bits(1, np.arange(100_000), 7, 0, 3),
        random_bits(1, 0, np.arange(100_000), 0, 3),
    ]
    for bits in grids:
        numbers = uniform(bits).ravel()
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-4


def test_every_bit_is_set_half_of_the_time() -> None:
    bits = random_bits(3, 1, np.arange(1000)[:, None], 2, np.arange(100)[None]).ravel()
    shares = [float(np.mean((bits >> np.uint64(place)) & np.uint64(1))) for place in range(64)]
    assert np.abs(np.array(shares) - 0.5).max() < 5 * 0.5 / np.sqrt(bits.size)


def test_neighbours_are_not_correlated() -> None:
    numbers = uniform(random_bits(5, 0, np.arange(500)[:, None], 0, np.arange(200)[None]))
    other_draw = uniform(random_bits(5, 0, np.arange(500)[:, None], 1, np.arange(200)[None]))
    other_epoch = uniform(random_bits(5, 1, np.arange(500)[:, None], 0, np.arange(200)[None]))
    pairs = [
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[1:], numbers[:-1]),
        (numbers, other_draw),
        (numbers, other_epoch),
    ]
    for left, right in pairs:
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 5 / np.sqrt(left.size)


def test_coordinates_are_not_interchangeable() -> None:
    drawn = {int(random_bits(*places)[0]) for places in ((0, 1), (1, 0), (0, 0, 1), (1, 1), (0,))}
    assert len(drawn) == 5


def test_negative_and_large_seeds_are_legal() -> None:
    drawn = {int(random_bits(seed)[0]) for seed in (-1, 0, 2**31, 2**63, 2**64 - 2)}
    assert len(drawn) == 5


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_permutation_has_every_number_once(length: int) -> None:
    numbers = permuted(np.arange(length), length, 1, 2)
    assert sorted(numbers.tolist()) == list(range(length))
    assert permuted(np.array([length - 1]), length, 1, 2)[0] == numbers[-1]


def test_permutation_is_random_and_keyed() -> None:
    numbers = permuted(np.arange(10_000), 10_000, 1)
    assert abs(np.corrcoef(np.arange(10_000), numbers)[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert np.mean(numbers == permuted(np.arange(10_000), 10_000, 2)) < 0.002
    first = permuted(np.zeros(3000, np.int64), 10, np.arange(3000))  # of 3000 permutations
    assert np.bincount(first, minlength=10) == pytest.approx(300, abs=90)


def test_permutation_of_a_huge_range_costs_no_memory() -> None:
    length = 3 * 10**12
    numbers = permuted(np.array([0, 1, length - 1]), length, 5)
    assert len(set(numbers.tolist())) == 3
    assert all(0 <= number < length for number in numbers.tolist())


def test_batches_that_are_not_stored_have_every_block_once_and_begin_anywhere() -> None:
    batches = PermutedBatches(blocks=103, batch_size=10, key=7)
    assert len(batches) == len(list(batches)) == 11
    assert [len(batch) for batch in batches] == [10] * 10 + [3]
    assert sorted(np.concatenate(list(batches)).tolist()) == list(range(103))
    for behind in (0, 4, 10, 11):
        rest = batches[behind:]
        assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in batches][behind:]
    assert batches[4:][2:][0].tolist() == batches[6].tolist()
    assert batches[0].tolist() != PermutedBatches(103, 10, 8)[0].tolist()
    assert len(PermutedBatches(10**12, 256, 1)[10**9 :][5]) == 256
