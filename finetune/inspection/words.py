"""Nearest words: tokens whose rows of the embedding table point in the same direction.

These vectors are the input of the network, before any context: near tokens can be exchanged for
each other on average, and all senses of a word are mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.errors import DataError
from finetune.jobs.sources import Model
from finetune.text.tokenizer.tokenizer import Tokenizer, token_text


@torch.no_grad()
def nearest_words(model: Model, words: Sequence[str], count: int = 10) -> list[dict[str, Any]]:
    """Find the tokens whose embeddings have the largest cosine with those of some words.

    Args:
        model: The encoder and its tokenizer.
        words: Words of one token or several; the embeddings of several are averaged.
        count: Neighbours of each; special tokens and the tokens of the word are left out.

    Returns:
        `word`, the `pieces` that it was split into, and `neighbours`: `token` and `cosine`.

    Raises:
        DataError: A word is not in the vocabulary.
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
    nearest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {
        "word": word,
        "pieces": [token_text(tokenizer, number) for number in ids],
        "neighbours": [
            {"token": token_text(tokenizer, number), "cosine": cosine} for number, cosine in nearest
        ],
    }


def words_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The neighbours of each word, the nearest first, with their cosines.

    Args:
        results: The result of `nearest_words`.
    """
    parts = []
    for result in results:
        pieces = " ".join(result["pieces"])
        name = result["word"] if pieces == result["word"] else f"{result['word']} ({pieces})"
        rows = [[near["token"], f"{near['cosine']:.3f}"] for near in result["neighbours"]]
        parts.append(table(rows, [name, "cosine"]))
    return "\n\n".join(parts)
