from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finetune.errors import ConfigError
from finetune.inspection import LayerStates, Model, Sequences, layer_similarity, linear_cka
from finetune.inspection.similarity import (
    collapse,
    compare_models,
    group_pairs,
    layers_within,
    similarity_table,
    within_table,
)
from finetune.text.features.pairs import encode_pairs
from tests.made.nets import tiny_encoder
from tests.made.texts import learned_tokenizer, sentences


def numpy_cka(x: Any, y: Any) -> float:
    """The definition, from centred Gram matrices (Kornblith et al., 2019, section 3)."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    count = len(x)
    centre = np.eye(count) - np.full((count, count), 1 / count)
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return float(np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m)))


def pair_of(count: int = 50) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 7, generator=generator) * torch.logspace(0, 2, 7) + 100
    y = x[:, :5] @ torch.randn(5, 5, generator=generator) + 9 * torch.randn(
        count, 5, generator=generator
    )
    return x, y


def test_cka_is_that_of_its_definition() -> None:
    x, y = pair_of()
    assert linear_cka([(x, y)]) == pytest.approx(numpy_cka(x, y), rel=1e-6)


@pytest.mark.parametrize("sizes", [[1] * 50, [7, 13, 30], [50], [49, 1, 0]])
def test_cka_does_not_depend_on_how_rows_are_cut(sizes: list[int]) -> None:
    x, y = pair_of()
    cut = list(zip(x.split(sizes), y.split(sizes), strict=True))
    assert linear_cka(cut) == pytest.approx(linear_cka([(x, y)]), rel=1e-12)


def test_cka_is_one_under_rotation_and_scaling() -> None:
    x, _ = pair_of()
    turn = torch.linalg.qr(torch.randn(7, 7, generator=torch.Generator().manual_seed(1)))[0]
    assert linear_cka([(x, 3 * x @ turn - 5)]) == pytest.approx(1, abs=1e-6)


def test_cka_of_what_never_changes_is_no_number() -> None:
    x, _ = pair_of()
    assert np.isnan(linear_cka([(x, torch.ones(50, 3))]))
    with pytest.raises(ValueError, match="expected rows"):
        linear_cka([])


def sequences_of(model: Model, count: int = 40) -> Sequences:
    features = encode_pairs(model.tokenizer, sentences(5, count), None, 16)
    return Sequences("made up", features)


def other(model: Model, seed: int = 1, **changes: Any) -> Model:
    encoder = tiny_encoder(seed, **changes)
    return Model(model.place, encoder, model.tokenizer)


@pytest.mark.parametrize("pooling", ["tokens", "mean"])
def test_every_layer_meets_every_layer(model: Model, pooling: str) -> None:
    deeper = other(model, num_hidden_layers=3, hidden_size=12)
    sequences = sequences_of(model)
    states = [LayerStates(one, sequences) for one in (model, deeper)]
    found = layer_similarity(states, pooling)
    assert found.shape == (3, 4)
    rows: list[list[Any]] = []
    for one in (model, deeper):
        layers: list[list[Tensor]] = [[] for _ in range(one.encoder.config.num_hidden_layers + 1)]
        for feature in sequences.features:
            batch = {"input_ids": torch.tensor([list(feature.input_ids)])}
            output = one.encoder(batch, output_hidden_states=True).hidden_states
            for layer, hidden in enumerate(output):
                text = hidden[0] if pooling == "tokens" else hidden[0].mean(0, keepdim=True)
                layers[layer].append(text.detach())
        rows.append([torch.cat(parts).numpy() for parts in layers])
    expected = [[numpy_cka(x, y) for y in rows[1]] for x in rows[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_all_pairs_are_compared_and_averaged_by_groups(model: Model) -> None:
    models = [model, other(model, 1), other(model, 2)]
    pairs = compare_models(models, [sequences_of(one) for one in models], "tokens")
    assert [(pair["first"], pair["second"]) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    tokens = int(sequences_of(model).lengths.sum())
    assert {pair["rows"] for pair in pairs} == {tokens}
    grouped = group_pairs(pairs, ["before", "after", "after"])
    assert list(grouped) == ["before – after", "within after"]
    first = [pairs[0]["same_layer"][1], pairs[1]["same_layer"][1]]
    assert grouped["before – after"][1]["values"] == first
    assert grouped["before – after"][1]["mean"] == pytest.approx(np.mean(first))
    lines = similarity_table(grouped).splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == ["embeddings", "block 1", "block 2"]
    assert lines[3].endswith(f"{pairs[2]['same_layer'][1]:.3f}")


def test_encoder_is_like_itself(model: Model) -> None:
    sequences = sequences_of(model)
    found = compare_models([model, model], [sequences, sequences], "tokens")[0]
    np.testing.assert_allclose(found["same_layer"], 1, atol=1e-9)
    np.testing.assert_allclose(found["cka"], np.transpose(found["cka"]), atol=1e-9)


def test_tokens_of_another_tokenizer_cannot_be_compared(model: Model) -> None:
    smaller = learned_tokenizer(40)
    foreign = Model(model.place, tiny_encoder(vocab_size=smaller.vocab_size), smaller)
    sequences = [sequences_of(model), sequences_of(foreign)]
    with pytest.raises(ConfigError, match="different tokens, .* take --pooling mean"):
        compare_models([model, foreign], sequences, "tokens")
    assert compare_models([model, foreign], sequences, "mean")[0]["rows"] == 40


def test_collapse_is_that_of_its_definitions(model: Model) -> None:
    sequences = sequences_of(model)
    states = LayerStates(model, sequences)
    found = collapse(states)
    layers: list[list[np.ndarray[Any, Any]]] = [[] for _ in found]
    for feature in sequences.features:
        ids = torch.tensor([feature.input_ids])
        output = model.encoder({"input_ids": ids}, output_hidden_states=True)
        for layer, hidden in enumerate(output.hidden_states):
            layers[layer].append(hidden[0].detach().double().numpy())
    for layer, texts in enumerate(layers):
        cosines, residuals, below = [], [], []
        for number, h in enumerate(texts):
            u = h / np.linalg.norm(h, axis=1, keepdims=True)
            others = ~np.eye(len(h), dtype=bool)
            cosines.append((u @ u.T)[others].mean())
            residuals.append(np.linalg.norm(h - h.mean(0)) / np.linalg.norm(h))
            if layer:
                low = layers[layer - 1][number]
                below += list((u * low).sum(1) / np.linalg.norm(low, axis=1))
        assert found[layer]["token_cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
        assert found[layer]["residual"] == pytest.approx(np.mean(residuals), abs=1e-5)
        expected = pytest.approx(np.mean(below), abs=1e-5) if layer else None
        assert found[layer]["previous_cosine"] == expected


def test_without_residuals_tokens_become_alike(model: Model) -> None:
    sizes = {"num_hidden_layers": 6, "initializer_range": 0.1}
    sequences = sequences_of(model)
    plain, cut = (
        collapse(LayerStates(other(model, **sizes, residual=residual), sequences))
        for residual in (True, False)
    )
    first, last = (cut[layer]["residual"] for layer in (1, -1))
    assert first is not None
    assert last is not None
    assert last < 0.1 * first
    assert plain[-1]["residual"] > 5 * last  # type: ignore[operator]


def test_one_run_is_compared_with_itself(model: Model) -> None:
    sequences = sequences_of(model)
    (pair,) = compare_models([model], [sequences], "tokens")
    assert (pair["first"], pair["second"]) == (0, 0)
    assert pair["same_layer"] == pytest.approx([1.0] * 3)
    lines = within_table(layers_within(model, sequences), pair["cka"]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[0] == "embeddings"
    assert len(lines[2].split()) == 3
    assert len(lines[3].split()) == 6
