"""Minimal pairs: does a language model find the good sentence more probable than the bad one?

The two sentences of a pair differ in a word or two, of which one makes the sentence bad (BLiMP;
Warstadt et al., 2020). A causal model scores a sentence by its log-likelihood, the sum of
log P(w_t | w_<t). A masked model has no such probability: its score is the pseudo-log-likelihood,
the sum of log P(w_t | W without w_t), each token masked alone (Salazar et al., 2020, section 2).

A pair is right where the good sentence has the larger score; a tie is wrong. Nothing is trained, so
the figure judges pretraining alone. How not to read it: the score of a longer sentence is smaller,
so that pairs of unequal length favour the shorter; and of the tokens of one word each sees the
others, which makes rare words of several pieces seem probable (Kauf and Ivanova, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finetune.console.output import quoted
from finetune.console.tables import table
from finetune.errors import DataError
from finetune.jobs.sources import drawn, load_language_model, longest_text
from finetune.runs.folder import RunFolder
from finetune.text.features.rows import read_rows
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer

GOOD, BAD = "sentence_good", "sentence_bad"
PHENOMENON, PARADIGM = "linguistics_term", "UID"
"""BLiMP's fields: the sentences, and the groups that a pair belongs to."""
BATCH_SIZE = 64
"""Sequences that are read at once."""
Z = 1.959964
"""Standard deviations of a normal distribution to each side that hold 95 % of it."""


class Pair(NamedTuple):
    """One minimal pair."""

    where: str
    """File and line, for messages."""
    good: str
    bad: str
    phenomenon: str
    """What it is about: BLiMP's `linguistics_term`."""
    paradigm: str
    """The template that it was made from: BLiMP's `UID`, or else the name of the file."""


def read_pairs(places: Sequence[str | Path]) -> list[Pair]:
    """Read minimal pairs in BLiMP's form.

    Args:
        places: Files with the fields `sentence_good` and `sentence_bad`, and optionally
            `linguistics_term` and `UID`; of a folder, all its .jsonl files.

    Raises:
        DataError: A file cannot be read or has no pair, or a row lacks a sentence or has one twice.
    """
    pairs = [_pair(Path(file).stem, *row) for file in _files(places) for row in read_rows(file)]
    if not pairs:
        raise DataError(f"{', '.join(map(str, places))}: expected minimal pairs, got none")
    return pairs


def _files(places: Sequence[str | Path]) -> Iterator[str]:
    for place in places:
        if not Path(place).is_dir():
            yield str(place)
            continue
        files = sorted(Path(place).glob("*.jsonl"))
        if not files:
            raise DataError(f"{place}: expected a folder with .jsonl files, got none in it")
        yield from map(str, files)


def _pair(name: str, where: str, row: Mapping[str, Any]) -> Pair:
    good, bad = (_sentence(row, field, where) for field in (GOOD, BAD))
    if good == bad:
        raise DataError(f"{where}: expected two sentences that differ, got {good[:40]!r} twice")
    paradigm = str(row.get(PARADIGM) or name)
    return Pair(where, good, bad, str(row.get(PHENOMENON) or paradigm), paradigm)


def _sentence(row: Mapping[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        fields = ", ".join(map(str, row)) or "no field"
        got = f"the fields {fields}" if value is None else quoted(value)
        raise DataError(f"{where}: expected a sentence in {field}, got {got}")
    return value


def wilson(right: int, count: int) -> tuple[float, float]:
    """A 95 % interval of a fraction (Wilson, 1927): never empty, also at 0 and 1.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]

    Args:
        right: How many of them.
        count: Of how many, 1 or more.
    """
    spread = Z * Z / count
    centre = (right / count + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(right * (count - right) / count**3 + spread / (4 * count))
    return max(0.0, centre - half), min(1.0, centre + half)


class Reading(NamedTuple):
    """A sequence that the model reads for a sentence, and the tokens that it is asked for."""

    sentence: tuple[int, ...]
    inputs: list[int]
    places: list[int]
    """Where it is asked."""
    labels: list[int]
    """The token at each."""


class SentenceScorer:
    """Scores sentences by a language model: log-likelihood, or pseudo-log-likelihood."""

    def __init__(
        self, module: Pretrainer, tokenizer: Tokenizer, *, batch_size: int = BATCH_SIZE
    ) -> None:
        """Keep the parts.

        Args:
            module: Encoder and language-model head, on their device and in eval mode.
            tokenizer: Its tokenizer.
            batch_size: Sequences that are read at once.
        """
        self.module, self.tokenizer, self.batch_size = module, tokenizer, batch_size
        self.causal = module.encoder.config.causal
        self.max_length = longest_text(module.encoder.config)
        template = tokenizer.template(pair=False)
        self.prefix, self.suffix = list(template.prefix), list(template.suffix)

    def encode(self, pairs: Sequence[Pair]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The tokens of both sentences of each pair, special ones aside.

        Raises:
            DataError: A sentence has no token, or is longer than the encoder reads.
        """
        sides = ([pair.good for pair in pairs], [pair.bad for pair in pairs])
        goods, bads = (map(tuple, self.tokenizer.encode_ids(side)) for side in sides)
        encoded = list(zip(goods, bads, strict=True))
        frame = len(self.prefix) + len(self.suffix)
        for pair, both in zip(pairs, encoded, strict=True):
            if not all(both):  # whose probability would be 1
                raise DataError(
                    f"{pair.where}: expected two sentences that the tokenizer reads, got one of "
                    "which no token is left; leave the pair out"
                )
            if (longest := max(map(len, both)) + frame) > self.max_length:
                raise DataError(
                    f"{pair.where}: expected sentences of at most {self.max_length} tokens, which "
                    f"the encoder reads, got {longest}; leave the pair out"
                )
        return encoded

    def score(self, sentences: Sequence[tuple[int, ...]]) -> list[float]:
        """Score sentences.

        Args:
            sentences: Tokens without special ones; equal ones get the same score to the last bit.

        Returns:
            Nats, at most 0.
        """
        sums = dict.fromkeys(sentences, 0.0)
        readings = sorted(
            (reading for ids in sums for reading in self.readings(ids) if reading.places),
            key=lambda reading: len(reading.inputs),
        )
        for _, of_a_length in groupby(readings, lambda reading: len(reading.inputs)):
            while batch := list(islice(of_a_length, self.batch_size)):  # so nothing is padded
                for reading, nats in zip(batch, self._ask(batch), strict=True):
                    sums[reading.sentence] += nats
        return [sums[ids] for ids in sentences]

    def readings(self, ids: tuple[int, ...]) -> Iterator[Reading]:
        """What is read for a sentence: once if causal, otherwise once for each token.

        Args:
            ids: Its tokens without special ones.
        """
        start = len(self.prefix)
        if self.causal:  # without a token before it, the first one is not predicted
            asked = range(0 if start else 1, len(ids))
            places = [start + token - 1 for token in asked]
            yield Reading(ids, [*self.prefix, *ids[:-1]], places, [ids[token] for token in asked])
            return
        for token, label in enumerate(ids):
            inputs = [*self.prefix, *ids, *self.suffix]
            inputs[start + token] = self.tokenizer.mask_token_id
            yield Reading(ids, inputs, [start + token], [label])

    @torch.no_grad()
    def _ask(self, readings: Sequence[Reading]) -> list[float]:
        """The sum of log P over what each reading asks for."""
        device = next(self.module.parameters()).device
        inputs = torch.tensor([reading.inputs for reading in readings])
        rows = [row for row, reading in enumerate(readings) for _ in reading.places]
        places = torch.tensor([place for reading in readings for place in reading.places])
        labels = torch.tensor([label for reading in readings for label in reading.labels])
        positions = torch.tensor(rows) * inputs.shape[1] + places
        batch = {"input_ids": inputs.to(device), "positions": positions.to(device)}
        # Rows of the table behind the vocabulary, which round it up, name nothing.
        logits: torch.Tensor = self.module(batch)[:, : self.tokenizer.vocab_size]
        chances = logits.float().log_softmax(-1).cpu().double()
        nats = chances.gather(1, labels[:, None])[:, 0]
        sums = torch.zeros(len(readings), dtype=torch.float64)
        return sums.index_add(0, torch.tensor(rows), nats).tolist()


def judge_pairs(
    run: str | Path,
    places: Sequence[str | Path],
    *,
    limit: int | None = None,
    seed: int = 1,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Score minimal pairs by the language model of a pretraining run.

    Args:
        run: RUN, or a checkpoint with a language-model head, masked or causal.
        places: What `read_pairs` reads.
        limit: Pairs of each paradigm at most, drawn by the seed; None for all.
        seed: Draws them.
        batch_size: Sequences that are read at once.

    Returns:
        `score`, the kind of score; `all`, and for each phenomenon and paradigm under `phenomena`
        and `paradigms`: `accuracy`, the 95 % interval `low` to `high`, `pairs` and `ties`;
        `unknown_tokens`; and under `pairs` each one with both scores, in nats.

    Raises:
        CheckpointError: There is no checkpoint, or its head is another one.
        DataError: A file cannot be read, has no pair or a bad row, or a sentence is too long.
    """
    module, tokenizer = load_language_model(RunFolder(Path(run)).one_run().path)
    scorer = SentenceScorer(module, tokenizer, batch_size=batch_size)
    pairs = _limited(read_pairs(places), limit, seed)
    encoded = scorer.encode(pairs)
    scores = scorer.score([ids for both in encoded for ids in both])
    rows = [
        {**pair._asdict(), "good_score": good, "bad_score": bad}
        for pair, good, bad in zip(pairs, scores[::2], scores[1::2], strict=True)
    ]
    unknown = sum(ids.count(tokenizer.unk_token_id) for both in encoded for ids in both)
    return {
        "score": "log-likelihood" if scorer.causal else "pseudo-log-likelihood",
        "all": _figures(rows),
        "phenomena": _by(rows, "phenomenon"),
        "paradigms": _by(rows, "paradigm"),
        "unknown_tokens": unknown,
        "pairs": rows,
    }


def _limited(pairs: Sequence[Pair], limit: int | None, seed: int) -> list[Pair]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.paradigm, []).append(pair)
    return [group[number] for group in groups.values() for number in drawn(len(group), limit, seed)]


def _by(rows: Sequence[Mapping[str, Any]], field: str) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[field], []).append(row)
    return {name: _figures(groups[name]) for name in sorted(groups)}


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    right = sum(row["good_score"] > row["bad_score"] for row in rows)
    low, high = wilson(right, len(rows))
    return {
        "accuracy": right / len(rows),
        "low": low,
        "high": high,
        "pairs": len(rows),
        "ties": sum(row["good_score"] == row["bad_score"] for row in rows),
    }


def pairs_table(judged: Mapping[str, Any]) -> str:
    """A line for each phenomenon, and one for all pairs.

    Args:
        judged: What `judge_pairs` gave.
    """
    rows = [
        [name, f"{figures['pairs']:,}", f"{100 * figures['accuracy']:.1f}"]
        + [f"{100 * figures['low']:.1f} to {100 * figures['high']:.1f}", f"{figures['ties']:,}"]
        for name, figures in [*judged["phenomena"].items(), ("all", judged["all"])]
    ]
    return table(rows, [judged["score"], "pairs", "right %", "95 % interval", "ties"])
