"""What is in a corpus, in numbers: printed when it is built, and stored beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.console.output import are, counted
from finetune.text.tokenizer.unknown import NOTICED

_FILE = "statistics.json"


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
        (folder / _FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> CorpusStatistics:
        """Read what `write` wrote."""
        return cls(**json.loads((folder / _FILE).read_text(encoding="utf-8")))

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


def entropy(counts: NDArray[np.int64]) -> float:
    """Return the entropy of a distribution given by counts.

    Args:
        counts: How often each thing was seen (N,).

    Returns:
        Entropy in nats; 0 if nothing was seen.
    """
    seen = counts[counts > 0]  # p log p goes to 0 with p, but numpy makes a NaN of it
    frequencies = seen / max(1, seen.sum())
    return float(-(frequencies * np.log(frequencies)).sum())
