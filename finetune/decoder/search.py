"""Greedy and beam search: pure functions over a step function, which know no network.

A step takes what was written so far and gives the log-probabilities of the next token. It learns
which of its former rows each row continues, so that one with a cache can follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]
"""Prefixes from the start token on, int64 (N, S), and for each the row of the call before that it
continues, int64 (N,) -> log-probabilities of the next token (N, V). In the first call N is the
number of sources, and each row continues its own source."""


class Found(NamedTuple):
    """The best target that was found for each source."""

    ids: Tensor
    """Its tokens without the start token, int64 (B, max_length); after its end, end tokens."""
    scores: Tensor
    """Its log-probability divided by the length penalty, (B,)."""


def length_penalty(length: Tensor | int, alpha: float) -> Tensor | float:
    """((5 + length) / (5 + 1))^α (Wu et al., 2016, section 7, equation 14).

    Every token makes a log-probability lower: undivided, the shortest target would win.

    >>> from finetune.decoder import length_penalty
    >>> length_penalty(1, 0.6), length_penalty(7, 1.0), length_penalty(7, 0.0)
    (1.0, 2.0, 1.0)
    """
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def greedy_search(
    step: Step, start: Tensor, end: int, max_length: int, alpha: float = 0.0
) -> Found:
    """Take the most probable token at each step.

    Args:
        step: Gives the log-probabilities of the next token.
        start: Start token of each source, int64 (B,).
        end: The token that ends a target.
        max_length: Tokens of the longest target, the end token included.
        alpha: Of the length penalty, which here changes the scores alone.
    """
    prefixes, rows = start.unsqueeze(1), torch.arange(len(start), device=start.device)
    totals, lengths = torch.zeros_like(start, dtype=torch.float), torch.zeros_like(start)
    ended = torch.zeros_like(start, dtype=torch.bool)
    for _ in range(max_length):
        best, tokens = step(prefixes, rows).float().max(dim=1)  # (B,) each
        totals, lengths = totals + best.masked_fill(ended, 0.0), lengths + ~ended
        tokens = tokens.masked_fill(ended, end)
        prefixes = torch.cat((prefixes, tokens.unsqueeze(1)), dim=1)
        ended = ended | (tokens == end)
        if ended.all():
            break
    return Found(_filled(prefixes, end, max_length), totals / length_penalty(lengths, alpha))


@torch.no_grad()
def beam_search(
    step: Step, start: Tensor, end: int, max_length: int, beams: int, alpha: float = 0.0
) -> Found:
    """Keep the most probable hypotheses at each step; the best complete one wins.

    A hypothesis that ends leaves the beam, which has one fewer then (Sutskever et al., 2014,
    section 3.2): with one beam this is greedy search, with enough of them it is exhaustive. The
    search stops where no hypothesis can overtake the best complete one any more.

    Args:
        step: Gives the log-probabilities of the next token.
        start: Start token of each source, int64 (B,).
        end: The token that ends a target.
        max_length: Tokens of the longest target, the end token included; where no hypothesis ends
            before, the best one is cut there.
        beams: K, hypotheses kept for each source.
        alpha: Of the length penalty.
    """
    count = len(start)
    sources = torch.arange(count, device=start.device).unsqueeze(1)  # (B, 1)
    prefixes, rows = start.unsqueeze(1), sources.squeeze(1)  # one hypothesis a source
    totals = torch.zeros(count, 1, device=start.device)  # log-probabilities (B, K)
    best = Found(start.new_full((count, max_length), end), totals.new_full((count,), -torch.inf))
    for length in range(1, max_length + 1):
        log_probs = step(prefixes, rows).float()  # (B K, V)
        every = totals.unsqueeze(2) + log_probs.view(*totals.shape, -1)  # (B, K, V)
        kept, vocab = totals.shape[1], every.shape[2]
        totals, chosen = every.flatten(1).topk(min(beams, kept * vocab), dim=1)  # (B, K)
        tokens = chosen % vocab
        rows = (sources * kept + chosen // vocab).flatten()  # (B K,)
        prefixes = torch.cat((prefixes[rows], tokens.view(-1, 1)), dim=1)
        ended = tokens == end
        if length == max_length:
            ended = ended | best.scores.isneginf().unsqueeze(1)
        best = _better(best, totals.masked_fill(~ended, -torch.inf), prefixes, length, end, alpha)
        totals = totals.masked_fill(ended, -torch.inf)
        # A log-probability only falls, so that this is the most that a hypothesis can reach.
        most = totals.amax(dim=1) / length_penalty(max_length, alpha)
        if (best.scores >= most).all():
            break
    return best


def _better(
    best: Found, complete: Tensor, prefixes: Tensor, length: int, end: int, alpha: float
) -> Found:
    """The best of what was found before and of the hypotheses that are complete now.

    Args:
        best: Found before.
        complete: Log-probabilities (B, K), minus infinity for those that are not complete.
        prefixes: The hypotheses with their start token (B K, S).
        length: Tokens that they have, without the start token.
        end: Fills what follows the end.
        alpha: Of the length penalty.
    """
    count, kept = complete.shape
    scores, number = (complete / length_penalty(length, alpha)).max(dim=1)  # (B,) each
    rows = torch.arange(count, device=number.device) * kept + number
    ids = _filled(prefixes[rows], end, best.ids.shape[1])
    wins = scores > best.scores
    return Found(
        torch.where(wins.unsqueeze(1), ids, best.ids), torch.where(wins, scores, best.scores)
    )


def _filled(prefixes: Tensor, end: int, max_length: int) -> Tensor:
    """Take the start token off and fill up with end tokens, (B, 1 + S) -> (B, max_length)."""
    ids = prefixes.new_full((len(prefixes), max_length), end)
    ids[:, : prefixes.shape[1] - 1] = prefixes[:, 1:]
    return ids
