"""What stands behind the mask: a pretrained model names the tokens that fit into a gap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune.errors import ConfigError, DataError
from finetune.jobs.sources import load_language_model, longest_text
from finetune.text.features.in_memory import rows_of
from finetune.text.features.pairs import Features, collate, encode_pairs, length_batches
from finetune.text.tokenizer.stated import ROLES
from finetune.text.tokenizer.tokenizer import Tokenizer, token_text
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.ranks import ALONE

TOP = 5
"""Candidates for each mask, unless more are asked for."""
WINDOW_BATCHES = 32
"""Batches of texts that are read ahead and sorted by length together."""
DIGITS = 6
"""Decimal places of a probability."""
Rows = Iterable[tuple[str, Mapping[str, Any]]]
"""Where each row is, and its values by field."""


def mask_name(tokenizer: Tokenizer) -> re.Pattern[str]:
    """What means a mask in a text: `[MASK]`, whatever the vocabulary calls it, or that name."""
    names = {tokenizer.special_tokens["mask_token"], ROLES["mask_token"][0]}
    return re.compile("|".join(map(re.escape, sorted(names))))


class MaskFiller:
    """A pretrained model that fills gaps; see `load_filler`."""

    def __init__(
        self,
        module: Pretrainer,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        batch_size: int = 32,
        top: int = TOP,
    ) -> None:
        """Keep the parts.

        Args:
            module: Encoder and language-model head, on their device and in eval mode.
            tokenizer: Its tokenizer.
            max_length: Tokens of the longest text.
            batch_size: Texts in a batch.
            top: Candidates for each mask.
        """
        self.module, self.tokenizer = module, tokenizer.reading_masks()
        self.max_length, self.batch_size, self.top = max_length, batch_size, top
        self.ranks = ALONE
        """Processes that divide each window of rows, which all of them get."""
        self.mask, self._name = tokenizer.special_tokens["mask_token"], mask_name(tokenizer)

    def predict(self, texts: Any) -> list[dict[str, Any]]:
        """Fill the masks of one text or many; it has the name and the inputs of `Predictor`'s.

        Args:
            texts: A text with at least one `[MASK]`, a dictionary with `text` and, if it has one,
                `id`; or many of these: a list, a DataFrame, a `datasets.Dataset`.

        Returns:
            As `stream`, in order.

        Raises:
            DataError: A text has no mask, or one behind the longest length.
        """
        rows = enumerate(rows_of(texts, "texts"))
        return list(self.stream((f"texts[{number}]", row) for number, row in rows))

    def generate(self, prompts: Any, **settings: Any) -> list[dict[str, Any]]:
        """Refuse: a masked language model fills gaps and writes nothing behind a text.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "expected a causal encoder to continue texts, got one that reads in both directions; "
            "predict fills in [MASK], and finetune pretrain --causal trains one that writes"
        )

    def stream(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """Fill the masks of rows in order, holding only a bounded number of them at a time.

        Each mask is filled on its own, as the model sees the others: as masks.

        Args:
            rows: Place for messages, and fields; `text` is read, and `id` where there is one.

        Yields:
            `id` (the row's own, or its number from 0), `text`, and `masks`: for each its
            `position`, the character of the text where it begins, and `candidates`, the most
            probable first: `token` and `probability`.

        Raises:
            DataError: A row has no text, no mask, or one behind the longest length.
        """
        read = ((where, _fields(where, row, number)) for number, (where, row) in enumerate(rows))
        while window := list(islice(read, WINDOW_BATCHES * self.batch_size)):
            yield from self._answers(window)

    def _answers(self, window: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        places = [self._places(where, row["text"]) for where, row in window]
        texts = [self._name.sub(self.mask, row["text"]) for _, row in window]
        features = encode_pairs(self.tokenizer, texts, None, self.max_length)
        for (where, _), starts, feature in zip(window, places, features, strict=True):
            self._check(where, len(starts), feature)
        candidates: list[list[list[dict[str, Any]]]] = [[] for _ in window]
        lengths = np.array([len(feature.input_ids) for feature in features])
        batches = length_batches(lengths, self.batch_size, seed=0, epoch=0, shuffle=False)
        own = [rows.tolist() for rows in self.ranks.part(batches) if len(rows)]
        found = self.ranks.merged([self._candidates(features, rows) for rows in own])
        for rows, batch in zip(batches, found, strict=True):
            filled = iter(batch)
            for row in rows.tolist():
                candidates[row] = [next(filled) for _ in places[row]]
        return [
            {**row, "masks": [_mask(*one) for one in zip(starts, filled, strict=True)]}
            for (_, row), starts, filled in zip(window, places, candidates, strict=True)
        ]

    def _places(self, where: str, text: str) -> list[int]:
        """Where the masks of a text begin, in characters."""
        starts = [match.start() for match in self._name.finditer(text)]
        if not starts:
            raise DataError(
                f"{where}: expected a text with {self.mask} in it, got none in {text[:40]!r}; "
                "write it where a word is to be found"
            )
        return starts

    def _check(self, where: str, wanted: int, feature: Features) -> None:
        """Refuse a text whose masks are not all among its tokens."""
        there = list(feature.input_ids).count(self.tokenizer.mask_token_id)
        if there < wanted:
            raise DataError(
                f"{where}: {wanted - there} of {wanted} masks are after the first "
                f"{self.max_length} tokens; shorten the text"
            )

    @torch.no_grad()
    def _candidates(
        self, features: Sequence[Features], rows: Sequence[int]
    ) -> list[list[dict[str, Any]]]:
        """Candidates of all masks of a batch, in the order of rows and positions."""
        device = next(self.module.parameters()).device
        batch = collate(features, rows, self.tokenizer.pad_token_id)
        masked = (batch["input_ids"] == self.tokenizer.mask_token_id).reshape(-1)
        batch["positions"] = masked.nonzero()[:, 0]
        logits: Tensor = self.module({name: tensor.to(device) for name, tensor in batch.items()})
        # Rows of the table behind the vocabulary, which round it up, name nothing.
        probabilities = logits.float()[:, : self.tokenizer.vocab_size].softmax(-1).cpu()
        best = probabilities.topk(min(self.top, probabilities.shape[1]))
        return [
            [
                {
                    "token": token_text(self.tokenizer, number),
                    "probability": round(probability, DIGITS),
                }
                for number, probability in zip(numbers, values, strict=True)
            ]
            for numbers, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def _fields(where: str, row: Mapping[str, Any], number: int) -> dict[str, Any]:
    text = row.get("text")
    if not isinstance(text, str):
        raise DataError(
            f"{where}: expected the field 'text' with a text in it, got "
            f"{', '.join(map(str, row)) or 'no field'}"
        )
    return {"id": row.get("id", number), "text": text}


def _mask(position: int, candidates: list[dict[str, Any]]) -> dict[str, Any]:
    return {"position": position, "candidates": candidates}


def load_filler(
    run: str | Path, *, batch_size: int | None = None, top: int | None = None
) -> MaskFiller:
    """Load the best checkpoint of a pretraining run, to fill the masks of texts.

    Args:
        run: RUN, or a checkpoint with a language-model head.
        batch_size: Texts in a batch; left out, 32.
        top: Candidates for each mask; left out, 5.

    Raises:
        CheckpointError: There is no checkpoint, or its head is another one.
        ConfigError: The encoder is causal: it sees nothing behind a mask.
    """
    module, tokenizer = load_language_model(Path(run))
    config = module.encoder.config
    if config.causal:
        raise ConfigError(
            f"{run}: expected an encoder that reads in both directions, got a causal one, "
            "which was never shown a mask and continues texts: use finetune generate"
        )
    return MaskFiller(
        module,
        tokenizer,
        max_length=longest_text(config),
        batch_size=batch_size or 32,
        top=top or TOP,
    )
