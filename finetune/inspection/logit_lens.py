"""Logit lens: what the language-model head reads off each layer (nostalgebraist, 2020).

    logits at boundary d = head(final norm(h_d)), d = 0 the embeddings .. L the last block

The final norm is there where the blocks end without one (`norm_position` pre or output). Each token
of a text is asked for as in training: masked alone, or from the tokens before it. A `[MASK]` in the
text of a masked model is a gap: all tokens are read with it, and nobody knows the right one there.

How not to read it: the head was trained for the last layer. What it does not read off a layer may
be there in another basis (Belrose et al., 2023): a late answer is no proof that a layer lacks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from finetune.console.tables import table
from finetune.errors import DataError
from finetune.inspection.layers import layer_names
from finetune.inspection.pairs import Reading, SentenceScorer
from finetune.jobs.fill_masks import mask_name
from finetune.text.tokenizer.tokenizer import Tokenizer, token_text
from finetune.training.loop.pretrainer import Pretrainer

TOP = 5
SHOWN = 4
"""Layers of which the table of tokens shows the first candidate."""


def logit_lens(
    module: Pretrainer, tokenizer: Tokenizer, texts: Sequence[str], top: int = TOP
) -> dict[str, Any]:
    """Read the tokens of texts off every layer.

    Args:
        module: Encoder and language-model head, in eval mode.
        tokenizer: Its tokenizer.
        texts: One or more.
        top: Candidates of each token and layer that are listed.

    Returns:
        `layers`: for each boundary its `name`, and over all tokens but gaps `nats`, minus the mean
        log probability of the token, and `right`, how often it comes first, both None where there
        are gaps alone; over all `agrees`, how often the first is that of the last layer, and
        `divergence`, the mean KL(last ‖ layer) in nats. `texts`: for each its `text` and `tokens`:
        `token`, `nats` (None of a gap) and `candidates` of every layer.

    Raises:
        DataError: A text has no token to predict, or is longer than the encoder reads.
    """
    scorer = SentenceScorer(module, tokenizer)
    frame = len(scorer.prefix) + len(scorer.suffix)
    read = []
    for text, ids in zip(texts, _encoded(scorer, texts), strict=True):
        readings = [one for one in scorer.readings(tuple(ids)) if one.places]
        if not readings or len(ids) + frame > scorer.max_length:
            raise DataError(
                f"{text[:40]!r}: expected a text of 1 to {scorer.max_length - frame} tokens, got "
                f"{len(ids)}; give another one"
            )
        read.append((text, readings, _chances(module, readings, tokenizer.vocab_size)))
    labels = torch.tensor([one for _, readings, _ in read for one in _labels(readings)])
    chances = torch.cat([of_text for _, _, of_text in read], dim=1)  # (L + 1, N, V)
    gap = None if scorer.causal else tokenizer.mask_token_id
    return {
        "layers": _layers(chances, labels, gap),
        "texts": [
            {"text": text, "tokens": _tokens(tokenizer, _labels(readings), of_text, top, gap)}
            for text, readings, of_text in read
        ],
    }


def _encoded(scorer: SentenceScorer, texts: Sequence[str]) -> Sequence[Sequence[int]]:
    """The tokens of texts; a masked model's `[MASK]` is the mask."""
    tokenizer = scorer.tokenizer
    if scorer.causal:  # which was never shown one
        return tokenizer.encode_ids(texts)
    name, mask = mask_name(tokenizer), tokenizer.special_tokens["mask_token"]
    return tokenizer.reading_masks().encode_ids([name.sub(mask, text) for text in texts])


def _labels(readings: Sequence[Reading]) -> list[int]:
    return [label for reading in readings for label in reading.labels]


@torch.no_grad()
def _chances(module: Pretrainer, readings: Sequence[Reading], vocabulary: int) -> Tensor:
    """Log probabilities of all words at each place that is asked for, (L + 1, N, V)."""
    encoder, device = module.encoder, next(module.parameters()).device
    parts = []
    for reading in readings:
        batch = {"input_ids": torch.tensor([reading.inputs], device=device)}
        states = encoder(batch, output_hidden_states=True).hidden_states
        assert states is not None
        # The last one has gone through the final norm already.
        normed = [*(encoder.final_norm(state) for state in states[:-1]), states[-1]]
        asked = torch.stack([state[0, reading.places] for state in normed])  # (L + 1, places, D)
        logits: Tensor = module.head(asked.flatten(0, 1))[:, :vocabulary]
        logits = logits.view(*asked.shape[:2], vocabulary)
        parts.append(logits.float().log_softmax(-1).cpu())
    return torch.cat(parts, dim=1)


def _layers(chances: Tensor, labels: Tensor, gap: int | None) -> list[dict[str, Any]]:
    last, first = chances[-1], chances.argmax(-1)  # (N, V), (L + 1, N)
    known = torch.tensor([label != gap for label in labels.tolist()])
    layers = []
    for layer, (name, of_layer) in enumerate(zip(layer_names(len(chances)), chances, strict=True)):
        nats = -of_layer.gather(1, labels[:, None])[known].double()
        right = (first[layer] == labels)[known].double()
        layers.append(
            {
                "name": name,
                "nats": float(nats.mean()) if known.any() else None,
                "right": float(right.mean()) if known.any() else None,
                "agrees": float((first[layer] == first[-1]).double().mean()),
                "divergence": float((last.exp() * (last - of_layer)).sum(-1).double().mean()),
            }
        )
    return layers


def _tokens(
    tokenizer: Tokenizer, labels: Sequence[int], chances: Tensor, top: int, gap: int | None
) -> list[dict[str, Any]]:
    best = chances.topk(min(top, chances.shape[-1]), dim=-1)
    return [
        {
            "token": token_text(tokenizer, label),
            "nats": None
            if label == gap
            else [-float(of_layer[place, label]) for of_layer in chances],
            "candidates": [
                [
                    {"token": token_text(tokenizer, number), "probability": round(chance, 6)}
                    for number, chance in zip(numbers, values, strict=True)
                ]
                for numbers, values in zip(
                    best.indices[:, place].tolist(),
                    best.values[:, place].exp().tolist(),
                    strict=True,
                )
            ],
        }
        for place, label in enumerate(labels)
    ]


def _known(layer: Mapping[str, Any]) -> list[str]:
    if layer["nats"] is None:
        return ["", ""]
    return [f"{layer['nats']:.3f}", f"{100 * layer['right']:.1f}"]


def lens_table(found: Mapping[str, Any]) -> str:
    """Figures of each layer; then the tokens of each text with the first candidate of some layers.

    Args:
        found: The result of `logit_lens`.
    """
    layers = found["layers"]
    rows = [
        [layer["name"], *_known(layer)]
        + [f"{100 * layer['agrees']:.1f}", f"{layer['divergence']:.3f}"]
        for layer in layers
    ]
    parts = [table(rows, ["layer", "nats", "right %", "as the last %", "KL to the last"])]
    count = min(SHOWN, len(layers))
    chosen = [round(n * (len(layers) - 1) / max(1, count - 1)) for n in range(count)]
    for text in found["texts"]:
        lines = [
            [one["token"], *(one["candidates"][layer][0]["token"] for layer in chosen)]
            for one in text["tokens"]
        ]
        parts.append(table(lines, ["token", *(layers[layer]["name"] for layer in chosen)]))
    return "\n\n".join(parts)
