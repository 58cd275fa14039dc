from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finetune.inspection import Model, Sequences, heads, summarize_heads
from finetune.inspection.heads import FIGURES
from finetune.text.features.pairs import encode_pairs
from tests.made.nets import tiny_encoder
from tests.made.texts import sentences


def sequences_of(model: Model, count: int = 12) -> Sequences:
    texts = sentences(3, count)
    return Sequences("made up", encode_pairs(model.tokenizer, texts, texts[::-1], 20))


def by_hand(weights: Any, ids: list[int], cls: int, sep: int) -> dict[str, list[float]]:
    """Figures of one head for each token of one text that has them, token by token."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for i, row in enumerate(weights):
        spread = -sum(w * np.log(w) for w in row if w > 0)
        found["distance"].append(sum(w * abs(i - j) for j, w in enumerate(row)))
        found["entropy"].append(spread)
        if ids[i] == cls:
            found["cls_entropy"].append(spread)
        found["cls"].append(sum(w for j, w in enumerate(row) if ids[j] == cls))
        found["sep"].append(sum(w for j, w in enumerate(row) if ids[j] == sep))
        found["self"].append(row[i])
        if i > 0:
            found["previous"].append(row[i - 1])
        if i + 1 < len(row):
            found["next"].append(row[i + 1])
    return found


def test_figures_are_those_counted_token_by_token(model: Model) -> None:
    sequences = sequences_of(model)
    found = summarize_heads(model, sequences)
    cls, sep = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    expected: dict[tuple[Any, ...], list[float]] = {}
    for feature in sequences.features:
        ids, types = list(feature.input_ids), list(feature.token_type_ids)
        batch = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types])}
        attentions = model.encoder(batch, output_attentions=True).attentions
        for layer, weights in enumerate(attentions):
            for head in range(2):
                one = by_hand(weights[0, head].tolist(), ids, cls, sep)
                for name, values in one.items():
                    expected.setdefault((name, layer, head), []).extend(values)
        even = [[1 / len(ids)] * len(ids)] * len(ids)
        for name, values in by_hand(even, ids, cls, sep).items():
            expected.setdefault((name,), []).extend(values)
    for name in FIGURES:
        assert found.uniform[name] == pytest.approx(np.mean(expected[name,]))
        for layer in range(2):
            for head in range(2):
                wanted = np.mean(expected[name, layer, head])
                assert found.figures[name][layer, head] == pytest.approx(wanted, rel=1e-4)


def test_figures_do_not_depend_on_the_batches(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = sequences_of(model)
    together = summarize_heads(model, sequences)
    monkeypatch.setattr(heads, "TOKENS_A_BATCH", 1)
    alone = summarize_heads(model, sequences)
    for name in FIGURES:
        np.testing.assert_allclose(alone.figures[name], together.figures[name], rtol=1e-4)
    assert alone.uniform == pytest.approx(together.uniform)


def test_uniform_head_of_a_causal_encoder_looks_back_only(model: Model) -> None:
    causal = Model(model.place, tiny_encoder(causal=True), model.tokenizer)
    found = summarize_heads(causal, sequences_of(causal))
    assert found.uniform["next"] == 0
    assert found.figures["next"].max() == 0


def test_json_and_table_have_a_line_a_head(model: Model) -> None:
    found = summarize_heads(model, sequences_of(model))
    content = found.as_json()
    assert [(one["layer"], one["head"]) for one in content["heads"]] == [
        *((1, 1), (1, 2), (2, 1), (2, 2))
    ]
    assert content["sequences"] == 12
    lines = found.as_text().splitlines()
    assert len(lines) == 2 + 4 + 1
    assert lines[-1].startswith("uniform")
    assert max(map(len, lines)) <= 80
