"""How well a causal language model predicts a text: figures that other tokenizers can be held to.

The text is one stream of tokens, longer than the encoder reads at once. It is read in windows that
overlap, and each token is scored in one of them: in the first that has it. So every token has a
part of the text before it, where blocks side by side would give a block's first tokens none.

An encoder with a memory (Dai et al., 2019) reads windows side by side, one after the other: what it
remembers is the text before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from finetune.console.output import counted
from finetune.encoder.memory import Memory
from finetune.errors import ConfigError, DataError
from finetune.jobs.generation import TextGenerator, load_generator, text_prefix
from finetune.runs.folder import RunFolder, say
from finetune.runs.results import Results
from finetune.text.corpus.documents import read_documents
from finetune.text.corpus.sources import corpus_sources
from finetune.text.tokenizer.tokenizer import Tokenizer

T = TypeVar("T")
BATCH = 16
"""Windows that are read together."""


class Window(NamedTuple):
    """A part of the stream: tokens `start` to `end` are read, those from `first` on are scored."""

    start: int
    first: int
    end: int


def sliding_windows(count: int, context: int, stride: int, prefix: int) -> list[Window]:
    """Windows that together score each token of a stream once.

    >>> sliding_windows(10, context=5, stride=2, prefix=1)[:2]
    [Window(start=0, first=0, end=5), Window(start=2, first=5, end=7)]

    Args:
        count: Tokens of the stream.
        context: Tokens that the encoder reads at once, `prefix` among them.
        stride: Tokens that a window scores, but for the first, which scores all of its own.
        prefix: Special tokens before each window; without one the first token is not predicted.
    """
    found = [Window(0, 0 if prefix else 1, min(count, context - prefix + 1))]
    while (first := found[-1].end) < count:
        end = min(count, first + stride)
        found.append(Window(max(0, end - 1 - (context - prefix)), first, end))
    return found


@dataclass(frozen=True)
class Text:
    """The documents of a corpus as one stream of tokens, and their size in other units."""

    ids: npt.NDArray[np.int64]
    """Each document followed by the token that ends it, (N,)."""
    words: int
    """Separated by white space."""
    bytes: int
    """Of UTF-8."""
    unknown: int
    """Tokens that the tokenizer does not know: they stand for words that nobody predicted."""

    @classmethod
    def read(cls, files: Sequence[str], tokenizer: Tokenizer) -> Text:
        """Read the documents of files as pretraining does.

        Raises:
            DataError: There is no token of a document in them, or one cannot be read.
        """
        ids: list[int] = []
        words = size = 0
        for part in _parts(read_documents(corpus_sources(files)), 1024):
            words += sum(len(text.split()) for text in part)
            size += sum(len(text.encode()) for text in part)
            for encoded in tokenizer.encode_ids(part):
                ids += [*encoded, tokenizer.sep_token_id]
        if not words or set(ids) == {tokenizer.sep_token_id}:
            message = "expected text to score, got none that the tokenizer reads"
            raise DataError(f"{', '.join(files)}: {message}; name other files")
        unknown = ids.count(tokenizer.unk_token_id)
        return cls(np.array(ids, dtype=np.int64), words, size, unknown)


@dataclass(frozen=True)
class Scores:
    """What a model says of each token of a stream that it predicted."""

    nats: npt.NDArray[np.float64]
    """Minus the logarithm of its probability, (N,)."""
    right: npt.NDArray[np.bool_]
    """Whether it was the most probable one, (N,)."""
    seen: npt.NDArray[np.int64]
    """Tokens before it in its window and in the memory, special ones among them, (N,)."""

    def metrics(self, text: Text) -> dict[str, float]:
        """The figures of a text: over tokens, over words, over bytes."""
        total = float(self.nats.sum())
        return {
            "nats_per_token": total / len(self.nats),
            # e to 710 is no float any more
            "word_perplexity": math.exp(min(total / text.words, 700.0)),
            "bits_per_byte": total / math.log(2) / text.bytes,
            "next_token_accuracy": float(self.right.mean()),
        }


def usual_stride(model: TextGenerator, wanted: int | None = None) -> int:
    """Tokens that a window scores: half of those that it reads, or with a memory all.

    Args:
        model: `max_length` tokens are read at once.
        wanted: What is asked for instead.

    Raises:
        ConfigError: A window cannot score so many, or has a memory and shall score fewer.
    """
    space = model.max_length - len(text_prefix(model.tokenizer))
    if model.module.encoder.config.memory:
        if wanted not in (None, space):
            raise ConfigError(
                f"stride ({wanted:,}): expected none, as an encoder with a memory reads windows "
                "side by side; leave it out"
            )
        return space  # so that each token is read once
    stride, most = wanted or max(1, model.max_length // 2), space + 1
    if stride > most:
        raise ConfigError(
            f"stride ({stride:,}) must not exceed {most:,}, the tokens that a window predicts; "
            "lower it"
        )
    return stride


@torch.no_grad()
def score_tokens(
    model: TextGenerator, ids: npt.NDArray[np.int64], stride: int | None = None
) -> Scores:
    """Predict each token of a stream from those before it in its window.

    Args:
        model: The language model; `max_length` tokens are read at once.
        ids: The stream, (N,).
        stride: Tokens that a window scores; None for the usual number.

    Raises:
        ConfigError: A window cannot score so many, or has a memory and shall score fewer.
    """
    prefix = text_prefix(model.tokenizer)
    memory, stride = model.module.new_memory(), usual_stride(model, stride)
    windows = sliding_windows(len(ids), model.max_length, stride, len(prefix))
    if memory:  # also the last one, so that no token is read twice
        windows = [Window(first - 1 if first else 0, first, end) for _, first, end in windows]
    parts = [
        part
        for some in _parts(windows, 1 if memory else BATCH)
        for part in _score_windows(model, ids, some, prefix, memory)
    ]
    return Scores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _score_windows(
    model: TextGenerator,
    ids: npt.NDArray[np.int64],
    windows: Sequence[Window],
    prefix: Sequence[int],
    memory: Memory | None = None,
) -> Iterator[tuple[npt.NDArray[Any], ...]]:
    device, module = next(model.module.parameters()).device, model.module
    rows = [[*prefix, *ids[start : end - 1].tolist()] for start, _, end in windows]
    longest = max(map(len, rows))
    # Padding comes last, where no token of a causal encoder sees it.
    inputs = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
    remembered = memory.length if memory else 0
    hidden = module.encoder({"input_ids": inputs}, memory=memory).last_hidden_state
    for (_, first, end), states, row in zip(windows, hidden, rows, strict=True):
        count = end - first
        logits = module.head(states[len(row) - count : len(row)]).float()
        # Rows of the table behind the vocabulary, which round it up, name nothing.
        chances = logits[:, : model.tokenizer.vocab_size].log_softmax(-1)
        labels = torch.from_numpy(ids[first:end]).to(device)
        nats = -chances.gather(1, labels[:, None])[:, 0].double()
        right = chances.argmax(-1) == labels
        seen = np.arange(len(row) - count, len(row)) + 1
        yield nats.cpu().numpy(), right.cpu().numpy(), seen + remembered


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def evaluate_corpus(
    run: str | Path, files: Sequence[str | Path], *, stride: int | None = None
) -> Results:
    """Score a causal language model on text.

    Args:
        run: RUN, or a checkpoint with a language-model head.
        files: Files or folders as of a corpus.
        stride: Tokens that each window scores; left out, half of what the encoder reads at once, or
            all of it where it has a memory.

    Returns:
        `metrics`: `nats_per_token`, `word_perplexity` (e to the nats a word, whatever the tokens),
        `bits_per_byte` and `next_token_accuracy`; and under `corpus` what they are of.

    Raises:
        ConfigError: The encoder is not causal, or the stride is too long.
        CheckpointError: There is no checkpoint, or its head is another one.
        DataError: There is no text in the files.
    """
    model = load_generator(run)
    names = [str(file) for file in files]
    text = Text.read(names, model.tokenizer)
    stride = usual_stride(model, stride)
    scores = score_tokens(model, text.ids, stride)
    if text.unknown:
        say(
            f"warning: {counted(text.unknown, 'token')} of {len(text.ids):,} unknown to the "
            "tokenizer: what they stand for was not predicted, so the figures are too good"
        )
    settings = RunFolder(Path(run)).read_config()
    return {
        "task": "language model",
        "split": ", ".join(names),
        "metrics": scores.metrics(text),
        "examples": len(scores.nats),
        "seed": settings.get("seed", 0),
        "corpus": {
            "files": names,
            "tokens": len(scores.nats),
            "words": text.words,
            "bytes": text.bytes,
            "unknown_tokens": text.unknown,
            "context": model.max_length,
            "stride": stride,
        },
    }
