"""The numbers of a corpus: what a run prints before it trains, and stores with its results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.console.output import are, counted
from finetune.text.corpus.packing import Blocks
from finetune.text.corpus.tokens import TokenCounts
from finetune.text.tokenizer.unknown import NOTICED

STATISTICS = "statistics.json"
FREQUENCIES = "frequencies.bin"
"""How often each token is trained on, int64 (V,)."""


@dataclass(frozen=True)
class CorpusStatistics:
    """The numbers of one corpus and its split."""

    documents: int
    """Documents with at least one token."""
    validation_documents: int
    """Those of them that are held out."""
    duplicate_documents: int
    """Documents whose text was there before."""
    empty_documents: int
    """Documents without a token (blanks and control characters only), left out."""
    tokens: int
    """Tokens of all documents, without the special tokens put around them."""
    mean_length: float
    """Tokens a document."""
    unknown_share: float
    """Fraction of the tokens that stand for something not in the vocabulary, 0 to 1."""
    unknown_documents: int
    """Documents of which more than half of the characters became the unknown token."""
    unknown_cause: str
    """Why words became the unknown token; empty if none did."""
    unigram_entropy: float
    """Entropy of a training token, special tokens apart, in nats: the loss of a model that knows
    how frequent each token is and nothing else."""
    train_blocks: int
    """Blocks to train on."""
    validation_blocks: int
    """Blocks to validate on."""

    def write(self, folder: Path) -> None:
        """Write `statistics.json` into a folder."""
        text = json.dumps(asdict(self), indent=2)
        (folder / STATISTICS).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> CorpusStatistics:
        """Read what `write` wrote."""
        return cls(**json.loads((folder / STATISTICS).read_text(encoding="utf-8")))

    def warnings(self) -> list[str]:
        """Say that much of the corpus is unknown to the tokenizer, if it is."""
        if self.unknown_share <= NOTICED and self.unknown_documents <= NOTICED * self.documents:
            return []
        return [
            f"{self.unknown_share:.1%} of the corpus's tokens are unknown, and "
            f"{self.unknown_documents:,} of {counted(self.documents, 'document')} "
            f"{are(self.unknown_documents)} mostly so: "
            f"{self.unknown_cause}; train the tokenizer on this corpus, with a higher "
            "limit_alphabet or --algorithm bpe"
        ]

    def as_text(self) -> str:
        """Return a table with one number a line."""
        rows = {
            "documents": f"{self.documents:,}, {self.validation_documents:,} held out",
            "duplicate documents": f"{self.duplicate_documents:,}",
            "documents without a token": f"{self.empty_documents:,}",
            "tokens": f"{self.tokens:,}",
            "tokens a document": f"{self.mean_length:,.1f}",
            "unknown tokens": f"{self.unknown_share:.3%}",
            "unigram entropy": f"{self.unigram_entropy:.3f} nats",
            "blocks": f"{self.train_blocks:,}, {self.validation_blocks:,} for validation",
        }
        return "\n".join(f"{name:<27}{value}" for name, value in rows.items())


def entropy(counts: NDArray[Any]) -> float:
    """Return the entropy of a distribution given by counts.

    Args:
        counts: How often each thing was seen, or fractions (N,).

    Returns:
        Entropy in nats; 0 if nothing was seen.
    """
    seen = counts[counts > 0]  # p log p goes to 0 with p, but numpy makes a NaN of it
    frequencies = seen / seen.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def count_statistics(
    counts: TokenCounts, sides: Sequence[Blocks], frequencies: NDArray[np.int64]
) -> CorpusStatistics:
    """The numbers of a corpus.

    Args:
        counts: What was counted while it was written.
        sides: Blocks to train on and to validate on.
        frequencies: How often each token is trained on, int64 (V,).
    """
    train, validation = sides
    return CorpusStatistics(
        documents=counts.documents,
        validation_documents=validation.documents,
        duplicate_documents=counts.duplicate_documents,
        empty_documents=counts.empty_documents,
        tokens=counts.tokens,
        mean_length=counts.tokens / counts.documents,
        unknown_share=counts.unknown_tokens / counts.tokens,
        unknown_documents=counts.unknown_documents,
        unknown_cause=counts.unknown_cause,
        unigram_entropy=entropy(frequencies),
        train_blocks=len(train),
        validation_blocks=len(validation),
    )


def mixed_statistics(
    every: Sequence[CorpusStatistics],
    frequencies: Sequence[NDArray[np.int64]],
    weights: Sequence[float],
    blocks: tuple[int, int],
) -> CorpusStatistics:
    """The sums over several corpora, but the entropy of what is drawn from them by weights.

    Args:
        every: Of N corpora.
        frequencies: How often each token is trained on in each, int64 (V,).
        weights: Fraction of the blocks that are drawn from each (N,).
        blocks: To train on, and to validate on.
    """
    tokens, documents = sum(one.tokens for one in every), sum(one.documents for one in every)
    drawn = sum(
        weight * seen / max(1, seen.sum())
        for weight, seen in zip(weights, frequencies, strict=True)
    )
    return CorpusStatistics(
        documents=documents,
        validation_documents=sum(one.validation_documents for one in every),
        duplicate_documents=sum(one.duplicate_documents for one in every),
        empty_documents=sum(one.empty_documents for one in every),
        tokens=tokens,
        mean_length=tokens / documents,
        unknown_share=sum(one.unknown_share * one.tokens for one in every) / tokens,
        unknown_documents=sum(one.unknown_documents for one in every),
        unknown_cause=next((one.unknown_cause for one in every if one.unknown_cause), ""),
        unigram_entropy=entropy(np.asarray(drawn)),
        train_blocks=blocks[0],
        validation_blocks=blocks[1],
    )


@dataclass(frozen=True)
class WeightedInput:
    """A part of a corpus that is drawn from with a weight."""

    name: str
    """As it was given: `PATH:WEIGHT`."""
    weight: float
    """Fraction of the blocks that are drawn from it."""
    blocks: int
    """Its training blocks."""
    passes: float
    """How often each of them is read in an epoch."""

    def as_text(self) -> str:
        """One line."""
        return (
            f"{self.name}: {self.weight:.1%} of the blocks, "
            f"{counted(self.blocks, 'block')}, each read {self.passes:.2f} times an epoch"
        )
