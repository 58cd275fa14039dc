"""Modified Kneser-Ney against its definition written out with dictionaries, and by hand."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from finetune.elementary import ngrams
from finetune.elementary.ngrams import NGrams

V = 6
Gram = tuple[int, ...]


def by_definition(blocks: list[list[int]], history: Gram, token: int, order: int) -> float:
    """Chen and Goodman, 1999, equations 12 to 17, a history never longer than its block."""

    def counts_of(length: int) -> Counter[Gram]:
        grams: Counter[Gram] = Counter()
        if length == order:
            for row in blocks:
                grams.update(tuple(row[n : n + length]) for n in range(len(row) - length + 1))
            return grams
        before = defaultdict(set)
        for row in blocks:
            for n in range(len(row) - length):
                before[tuple(row[n + 1 : n + 1 + length])].add(row[n])
        for gram, tokens in before.items():
            grams[gram] = len(tokens)
        if length > 1:
            grams.update(tuple(row[:length]) for row in blocks)
        return grams

    def discount(grams: Counter[Gram], count: int) -> float:
        n = [sum(value == size for value in grams.values()) for size in (0, 1, 2, 3, 4)]
        usual = (0.5, 1.0, 1.5)
        if not all(n[1:4]):
            return usual[min(count, 3) - 1]
        y = n[1] / (n[1] + 2 * n[2])
        each = [size - (size + 1) * y * n[size + 1] / n[size] for size in (1, 2, 3)]
        if not all(0 <= one <= size for size, one in enumerate(each, 1)):
            return usual[min(count, 3) - 1]
        return each[min(count, 3) - 1]

    def probability(history: Gram, token: int) -> float:
        grams = counts_of(len(history) + 1)
        after = {gram: count for gram, count in grams.items() if gram[:-1] == history}
        shorter = probability(history[1:], token) if history else 1 / V
        if not after:
            return shorter
        total = sum(after.values())
        count = after.get((*history, token), 0)
        seen = count - discount(grams, count) if count else 0.0
        left = sum(discount(grams, value) for value in after.values())
        return seen / total + left / total * shorter

    return probability(history, token)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_probabilities_are_those_of_the_definition(order: int) -> None:
    draw = np.random.default_rng(order)
    train = np.concatenate([np.zeros((9, 1), int), draw.integers(1, V, (9, 7)) % 4 + 1], axis=1)
    block = np.array([[0, *draw.integers(1, V, 6).tolist()]])
    found = np.exp(NGrams(train, V, order).log_probabilities(block))[0]
    row = block[0].tolist()
    expected = [
        by_definition(train.tolist(), tuple(row[max(0, at - order + 1) : at]), row[at], order)
        for at in range(1, len(row))
    ]
    assert found == pytest.approx(expected)


def test_bigrams_by_hand() -> None:
    # Bigrams 01 12 21 12: counts 1, 2, 1; too few for estimates: 0.5 and 1.0 are taken off.
    # Left neighbours: of 1: {0, 2}, of 2: {1}; so p(1) = (2 - 1) / 3 + (1 + 0.5) / 3 / 3.
    model = NGrams(np.array([[0, 1, 2, 1, 2]]), vocab_size=3, order=2)
    first, second = np.exp(model.log_probabilities(np.array([[0, 1, 2]])))[0]
    of_1 = 1 / 3 + 1.5 / 3 / 3
    assert first == pytest.approx(0.5 + 0.5 * of_1)
    of_2 = 0.5 / 3 + 1.5 / 3 / 3
    assert second == pytest.approx((2 - 1) / 2 + 1 / 2 * of_2)


def test_probabilities_of_all_tokens_sum_to_one() -> None:
    train = np.random.default_rng(0).integers(0, V, (20, 12))
    model = NGrams(train, V, 3)
    for history in ([1, 2], [5, 5], [0]):
        total = sum(
            np.exp(model.log_probabilities(np.array([[*history, token]]))[0, -1])
            for token in range(V)
        )
        assert total == pytest.approx(1)


def test_repeated_text_is_predicted_and_a_large_vocabulary_has_shorter_n_grams() -> None:
    row = np.arange(1000) % 10 + 40_000
    loss = -NGrams(row[None], 2**20).log_probabilities(row[None, :50]).mean()
    assert loss < 0.7
    assert len(NGrams(row[None], 2**20)._levels) == 3
    assert len(NGrams(row[None], 30_522 * 2)._levels) == ngrams.ORDER - 1 + (61_044**4 < 2**63)
