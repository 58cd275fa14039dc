from __future__ import annotations

from pathlib import Path

import pytest
import torch

from finetune.errors import ConfigError
from finetune.heads.pooling import POOLINGS
from finetune.inspection import LayerStates, Model, Sequences, layer_vectors
from finetune.inspection.layers import check_pooling, layer_names
from finetune.text.features.pairs import encode_pairs
from finetune.training.config import CacheConfig
from finetune.training.prefix.cache import RowSet, features_key, open_cache
from finetune.training.prefix.states import arithmetic_key
from finetune.training.prefix.store import list_entries
from tests.made.texts import sentences


@pytest.fixture
def sequences(model: Model) -> Sequences:
    return Sequences("made up", encode_pairs(model.tokenizer, sentences(4, 40), None, 16))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_the_pooled_states_of_each_text(
    model: Model, sequences: Sequences, pooling: str
) -> None:
    vectors = layer_vectors(model, sequences, pooling)
    assert vectors.shape[:2] == (3, 40)
    for row in (0, 17, 39):
        ids = torch.tensor([list(sequences.features[row].input_ids)])
        states = model.encoder({"input_ids": ids}, output_hidden_states=True).hidden_states
        for layer, hidden in enumerate(states):
            expected = POOLINGS[pooling](hidden, None)[0]
            torch.testing.assert_close(vectors[layer, row], expected, atol=2e-5, rtol=1e-4)


def test_states_that_fine_tuning_kept_are_not_computed_again(
    model: Model, sequences: Sequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = LayerStates(model, sequences, caching=CacheConfig(cache=False))
    expected = filled.vectors("mean")
    rows = RowSet("made up", features_key(sequences.features), sequences.lengths, {1: 1.0, 2: 1.0})
    open_cache(  # as a run with a frozen part does
        model.encoder,
        rows,
        [2, 1],
        filled._batches(),
        folder=tmp_path / "hidden",
        config=CacheConfig(),
        arithmetic=arithmetic_key(torch.device("cpu"), "32-true"),
    ).close()
    for block in model.encoder.blocks:
        monkeypatch.setattr(block, "forward", lambda *_: pytest.fail("computed again"))
    states = LayerStates(model, sequences, cache_dir=str(tmp_path))
    assert states._cache.depths == (1, 2)
    assert torch.equal(states.vectors("mean"), expected)


def test_one_pass_fills_every_layer_and_the_next_one_reads_them(
    model: Model, sequences: Sequences, tmp_path: Path
) -> None:
    first = layer_vectors(model, sequences, "cls", cache_dir=str(tmp_path))
    entries = list_entries(tmp_path / "hidden")
    assert sorted(entry.depth for entry in entries) == [1, 2]
    second = layer_vectors(model, sequences, "cls", cache_dir=str(tmp_path))
    assert torch.equal(first, second)
    assert len(list_entries(tmp_path / "hidden")) == 2


def test_without_room_the_same_vectors_are_computed(model: Model, sequences: Sequences) -> None:
    kept = layer_vectors(model, sequences, "mean")
    none = layer_vectors(model, sequences, "mean", caching=CacheConfig(cache=False))
    assert torch.equal(kept, none)


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(ConfigError, match="--pooling must .*, got 'meen'; did you mean 'mean'"):
        check_pooling("meen")
    check_pooling("tokens", "tokens")
    with pytest.raises(ConfigError, match="one of cls, last, mean, max, concat, got"):
        check_pooling("tokens")


def test_layers_have_names() -> None:
    assert layer_names(3) == ["embeddings", "block 1", "block 2"]
