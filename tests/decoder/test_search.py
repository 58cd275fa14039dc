from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from finetune.decoder.search import beam_search, greedy_search, length_penalty

START, END, VOCAB = 0, 1, 4


class Table:
    """A step whose probabilities depend on the source and on the last two tokens."""

    def __init__(self, sources: int, seed: int = 0, sharpness: float = 1.5) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(sources, VOCAB, VOCAB, VOCAB, generator=generator)
        self.log_probs = (sharpness * logits).log_softmax(dim=-1)
        self.sources: Tensor = torch.arange(sources)
        self.steps = 0

    def __call__(self, prefixes: Tensor, rows: Tensor) -> Tensor:
        self.sources = self.sources[rows]  # as a cache follows the rows
        self.steps += 1
        before = prefixes[:, -2] if prefixes.shape[1] > 1 else torch.zeros_like(prefixes[:, -1])
        return self.log_probs[self.sources, before, prefixes[:, -1]]

    def log_prob(self, source: int, target: tuple[int, ...]) -> float:
        ids = (START, START, *target)
        pairs = zip(ids, ids[1:], ids[2:], strict=False)
        return float(sum(self.log_probs[source, a, b, c] for a, b, c in pairs))


def all_targets(length: int) -> list[tuple[int, ...]]:
    """Every target that ends within so many tokens."""
    others = [token for token in range(VOCAB) if token != END]
    return [
        (*words, END)
        for count in range(length)
        for words in itertools.product(others, repeat=count)
    ]


def start(count: int) -> Tensor:
    return torch.full((count,), START)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_every_hypothesis_finds_the_best_target(alpha: float) -> None:
    table, length = Table(3), 4
    found = beam_search(table, start(3), END, length, beams=VOCAB**length, alpha=alpha)
    for source in range(3):
        scores = {
            target: table.log_prob(source, target) / float(length_penalty(len(target), alpha))
            for target in all_targets(length)
        }
        best = max(scores, key=lambda target: scores[target])
        assert found.ids[source].tolist() == [*best, *[END] * (length - len(best))]
        assert float(found.scores[source]) == pytest.approx(scores[best], abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_one_beam_is_greedy_search(seed: int) -> None:
    greedy = greedy_search(Table(6, seed), start(6), END, 7, alpha=0.6)
    beam = beam_search(Table(6, seed), start(6), END, 7, beams=1, alpha=0.6)
    assert torch.equal(greedy.ids, beam.ids)
    torch.testing.assert_close(greedy.scores, beam.scores)


def test_greedy_search_takes_the_most_probable_token_each_time() -> None:
    table = Table(1)
    ids: list[int] = []
    while not ids or (ids[-1] != END and len(ids) < 7):
        before, last = ([START, START, *ids])[-2:]
        ids.append(int(table.log_probs[0, before, last].argmax()))
    found = greedy_search(table, start(1), END, 7)
    assert found.ids[0, : len(ids)].tolist() == ids
    assert float(found.scores[0]) == pytest.approx(table.log_prob(0, tuple(ids)), abs=1e-5)


def test_more_beams_find_no_worse_target_here() -> None:
    scores = [
        beam_search(Table(20), start(20), END, 6, beams=beams).scores.mean() for beams in (1, 2, 8)
    ]
    assert scores[0] < scores[1] <= scores[2]


def test_a_batch_finds_what_each_source_finds_alone() -> None:
    together = beam_search(Table(4), start(4), END, 6, beams=3, alpha=0.6)
    for source in range(4):
        alone = Table(4)
        alone.sources = torch.tensor([source])
        found = beam_search(alone, start(1), END, 6, beams=3, alpha=0.6)
        assert torch.equal(found.ids[0], together.ids[source])


def test_a_target_that_never_ends_is_cut() -> None:
    def step(prefixes: Tensor, rows: Tensor) -> Tensor:
        return torch.tensor([[-1.0, -math.inf, -0.5, -2.0]]).expand(len(prefixes), -1)

    for beams in (1, 3):
        found = beam_search(step, start(2), END, 3, beams=beams)
        assert found.ids.tolist() == [[2, 2, 2]] * 2
        assert found.scores.tolist() == [-1.5, -1.5]


def test_the_search_ends_once_nothing_better_can_come() -> None:
    def step(prefixes: Tensor, rows: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return torch.tensor([[-9.0, -0.01, -9.0, -9.0]]).expand(len(prefixes), -1)

    steps = 0
    beam_search(step, start(2), END, 50, beams=4, alpha=0.6)
    assert steps == 1


def test_the_search_goes_on_while_the_penalty_can_make_a_longer_target_the_better_one() -> None:
    def step(prefixes: Tensor, rows: Tensor) -> Tensor:
        ends, goes_on = (-1.0, -1.05) if prefixes.shape[1] == 1 else (-0.01, -9.0)
        return torch.tensor([[-9.0, ends, goes_on, -9.0]]).expand(len(prefixes), -1)

    found = beam_search(step, start(1), END, 5, beams=2, alpha=2.0)
    assert found.ids.tolist() == [[2, END, END, END, END]]
    assert float(found.scores[0]) == pytest.approx(-1.06 / float(length_penalty(2, 2.0)))


@pytest.mark.parametrize(
    ("length", "alpha", "penalty"), [(1, 0.6, 1.0), (7, 1.0, 2.0), (10, 0.0, 1.0), (19, 2.0, 16.0)]
)
def test_length_penalty_is_that_of_the_paper(length: int, alpha: float, penalty: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(penalty)


def test_a_length_penalty_prefers_longer_targets() -> None:
    def mean_length(alpha: float) -> float:
        ids = beam_search(Table(40), start(40), END, 8, beams=4, alpha=alpha).ids
        return float((ids != END).sum() / len(ids))

    assert mean_length(0.0) < mean_length(1.5)
