"""The loss of a language model by how often a token occurred in training.

The mean over all masked tokens is mostly the loss on frequent ones. Each bin also has the loss of a
model that knows only the frequency of every token: the difference of the two is what the network
has learned from the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from finetune.console.tables import table
from finetune.errors import ConfigError, DataError
from finetune.jobs.pretraining import corpus_data
from finetune.jobs.sources import load_language_model
from finetune.runs.folder import RunFolder, cache_folder
from finetune.runs.settings import AdaptRun, PretrainRun
from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
BLOCKS_AT_ONCE = 4096


def loss_by_frequency(
    place: str | Path,
    corpus: Sequence[str] | None = None,
    *,
    batches: int | None = None,
    cache_dir: str | None = None,
) -> dict[str, Any]:
    """Score masked tokens of a corpus's validation documents, by their count in the others.

    The split and the masks are those of the run's validation: with the run's corpus and number of
    batches, the loss over all tokens is that of its results.json.

    Args:
        place: A pretraining run.
        corpus: Files and folders of text; default: those of the run.
        batches: Validation batches at most; default: the run's number.
        cache_dir: Cache folder of tokenized texts.

    Returns:
        `tokens` (number of masked ones), `loss` and `unigram_loss` (nats), `accuracy`; `bins`: each
        with `least` and `most` (times seen), `kinds` (different tokens of the vocabulary), and the
        same figures, None where no masked token is in the bin.

    Raises:
        ConfigError: The folder contains no pretraining run, or its corpus is not known.
        DataError: The corpus is missing, or too small for a validation document.
    """
    folder = Path(place)
    run, text = _settings(folder)
    module, tokenizer = load_language_model(folder)
    sources = list(corpus or run.corpus or ())
    if not sources:
        raise ConfigError(f"{folder}: its corpus is a task's own text; name files by --corpus")
    built = build_corpus(sources, tokenizer, text, run.seed, cache_folder(cache_dir))
    if not len(built.validation):
        raise DataError(
            f"{', '.join(sources)}: too few documents for a validation document; add text"
        )
    run = _validating(run, batches)
    data = corpus_data(run, module, tokenizer, built, text)
    labels, losses, right = _score(module, data.val_dataloader())
    counts = training_counts(built, tokenizer)
    return {"corpus": sources, **binned(counts, labels, losses, right)}


def _validating(run: PretrainRun | AdaptRun, batches: int | None) -> PretrainRun | AdaptRun:
    """The run's settings with this number of validation batches, prepared in this process."""
    count = batches or run.loader.validation_batches
    loader = dataclasses.replace(run.loader, num_workers=0, validation_batches=count)
    return dataclasses.replace(run, loader=loader)


def _settings(folder: Path) -> tuple[PretrainRun | AdaptRun, CorpusConfig]:
    """The settings of a run of pretraining or of continued pretraining, and those of its corpus."""
    try:
        adapted = RunFolder(folder).read_settings(AdaptRun)
    except ConfigError:
        run = RunFolder(folder).read_settings(PretrainRun)
        return run, run.data
    return adapted, adapted.text


def training_counts(corpus: Corpus, tokenizer: Tokenizer) -> Ids:
    """How often each token occurs in the training blocks, int64 (V,); 0 for special tokens."""
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for start in range(0, len(corpus.train), BLOCKS_AT_ONCE):
        numbers = np.arange(start, min(start + BLOCKS_AT_ONCE, len(corpus.train)))
        ids = corpus.train.blocks(numbers).input_ids
        counts += np.bincount(ids.reshape(-1), minlength=len(counts))
    counts[list(tokenizer.special_ids)] = 0
    return counts


@torch.no_grad()
def _score(module: Pretrainer, loader: Any) -> tuple[Ids, Floats, npt.NDArray[np.bool_]]:
    """Label, loss (nats) and whether the prediction was right, for each masked token."""
    device = next(module.parameters()).device
    labels, losses, right = [], [], []
    for batch in loader:
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        logits = module(moved).float()
        losses.append(F.cross_entropy(logits, moved["labels"], reduction="none").cpu())
        right.append((logits.argmax(-1) == moved["labels"]).cpu())
        labels.append(batch["labels"])
    return (
        torch.cat(labels).numpy(),
        torch.cat(losses).double().numpy(),
        torch.cat(right).numpy(),
    )


def binned(
    counts: Ids, labels: Ids, losses: Floats, right: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """Average the losses of tokens by powers of ten of their count.

    Args:
        counts: How often each token was seen (V,).
        labels: The masked tokens, int64 (N,).
        losses: Nats each (N,).
        right: Whether each was predicted correctly, bool (N,).

    Returns:
        As `loss_by_frequency`.
    """
    # Add-one smoothing: the loss of a token that never occurred is finite too.
    unigram = -np.log((counts + 1) / (counts + 1).sum())
    highest = len(str(int(counts.max())))  # digits
    bounds = [0, *(10**power for power in range(highest + 1))]
    bins = []
    for least, end in zip(bounds, bounds[1:], strict=False):
        inside = (counts >= least) & (counts < end)
        figures = _figures(inside[labels], labels, losses, right, unigram)
        bins.append({"least": least, "most": end - 1, "kinds": int(inside.sum())} | figures)
    everything = np.ones(len(labels), dtype=np.bool_)
    return {**_figures(everything, labels, losses, right, unigram), "bins": bins}


def _figures(
    chosen: npt.NDArray[np.bool_],
    labels: Ids,
    losses: Floats,
    right: npt.NDArray[np.bool_],
    unigram: Floats,
) -> dict[str, Any]:
    if not chosen.any():
        return {"tokens": 0, "loss": None, "unigram_loss": None, "accuracy": None}
    return {
        "tokens": int(chosen.sum()),
        "loss": float(losses[chosen].mean()),
        "unigram_loss": float(unigram[labels[chosen]].mean()),
        "accuracy": float(right[chosen].mean()),
    }


def frequency_table(figures: Mapping[str, Any]) -> str:
    """One line for each bin, and one for all tokens.

    Args:
        figures: The result of `loss_by_frequency`.
    """
    rows = [_row(_range(part), part, f"{part['kinds']:,}") for part in figures["bins"]]
    header = ["seen in training", "kinds", "masked", "loss", "unigram", "accuracy %"]
    return table([*rows, _row("all", figures, "")], header)


def _range(part: Mapping[str, Any]) -> str:
    return "never" if part["most"] == 0 else f"{part['least']:,} to {part['most']:,}"


def _row(name: str, part: Mapping[str, Any], kinds: str) -> list[str]:
    if not part["tokens"]:
        return [name, kinds, "0", "", "", ""]
    numbers = [f"{part[key]:.3f}" for key in ("loss", "unigram_loss")]
    return [name, kinds, f"{part['tokens']:,}", *numbers, f"{100 * part['accuracy']:.1f}"]
