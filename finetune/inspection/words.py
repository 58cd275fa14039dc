"""Nearest words: whose rows of the embedding table point the same way.

These are the vectors that go into the network, before any context: they tell what a token can be
exchanged for on average, and mix all its senses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.errors import DataError
from finetune.jobs.sources import Model
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.visible import token_text


@torch.no_grad()
def nearest_words(model: Model, words: Sequence[str], count: int = 10) -> list[dict[str, Any]]:
    """Find the tokens whose embeddings have the largest cosine with those of some words.

    Args:
        model: The encoder and its tokenizer.
        words: Each one token or several; several are averaged.
        count: Neighbours of each; special tokens and the word's own are left out.

    Returns:
        `word`, the `pieces` that it was split into, and `neighbours`: `token` and `cosine`.

    Raises:
        DataError: A word has no token that is in the vocabulary.
    """
    tokenizer = model.tokenizer
    vectors = model.encoder.embeddings.word_embeddings.weight.detach().float().cpu()
    vectors = vectors[: tokenizer.vocab_size]
    left_out = torch.zeros(len(vectors), dtype=torch.bool)
    left_out[list(tokenizer.special_ids)] = True
    return [_neighbours(tokenizer, word, vectors, left_out, count) for word in words]


def _neighbours(
    tokenizer: Tokenizer, word: str, vectors: Tensor, left_out: Tensor, count: int
) -> dict[str, Any]:
    ids = tokenizer.encode_ids([word])[0]
    if not ids or tokenizer.unk_token_id in ids:
        raise DataError(f"{word!r}: expected a word of the vocabulary, got none of its tokens")
    cosines = torch.cosine_similarity(vectors[ids].mean(0, keepdim=True), vectors)
    cosines[left_out] = -torch.inf
    cosines[ids] = -torch.inf
    best = cosines.topk(min(count, int(cosines.isfinite().sum())))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {
        "word": word,
        "pieces": [token_text(tokenizer, number) for number in ids],
        "neighbours": [
            {"token": token_text(tokenizer, number), "cosine": cosine} for number, cosine in found
        ],
    }


def words_table(found: Sequence[Mapping[str, Any]]) -> str:
    """The neighbours of each word, the nearest first, with their cosines."""
    parts = []
    for one in found:
        pieces = " ".join(one["pieces"])
        name = one["word"] if pieces == one["word"] else f"{one['word']} ({pieces})"
        rows = [[near["token"], f"{near['cosine']:.3f}"] for near in one["neighbours"]]
        parts.append(table(rows, [name, "cosine"]))
    return "\n\n".join(parts)
