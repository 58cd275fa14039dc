from __future__ import annotations

import numpy as np
import pytest
import torch

from finetune.errors import DataError
from finetune.inspection import Model, nearest_words
from finetune.inspection.words import words_table


def vector_of(model: Model, word: str) -> np.ndarray:
    ids = model.tokenizer.encode_ids([word])[0]
    table = model.encoder.embeddings.word_embeddings.weight.detach().numpy()
    return np.asarray(table[ids].mean(0))


def test_neighbours_are_sorted_by_their_cosine(model: Model) -> None:
    (found,) = nearest_words(model, ["cat"], 4)
    assert (found["word"], found["pieces"]) == ("cat", ["cat"])
    cosines = [near["cosine"] for near in found["neighbours"]]
    assert cosines == sorted(cosines, reverse=True)
    own = vector_of(model, "cat")
    everything = []
    for name, number in model.tokenizer.backend.get_vocab().items():
        if number not in model.tokenizer.special_ids and name != "cat":
            row = model.encoder.embeddings.word_embeddings.weight[number].detach().numpy()
            everything.append((own @ row / np.linalg.norm(own) / np.linalg.norm(row), name))
    expected = sorted(everything, reverse=True)[:4]
    assert [near["token"] for near in found["neighbours"]] == [name for _, name in expected]
    np.testing.assert_allclose(cosines, [cosine for cosine, _ in expected], atol=1e-5)


def test_twin_is_the_nearest_word(model: Model) -> None:
    cat, dog = (model.tokenizer.encode_ids([word])[0][0] for word in ("cat", "the"))
    with torch.no_grad():
        rows = model.encoder.embeddings.word_embeddings.weight
        rows[dog] = 2 * rows[cat]
    best = nearest_words(model, ["cat"], 1)[0]["neighbours"][0]
    assert best == {"token": "the", "cosine": pytest.approx(1.0)}


def test_word_of_several_pieces_is_their_mean_and_not_its_own_neighbour(model: Model) -> None:
    word = "cathouse"
    (found,) = nearest_words(model, [word], 100)
    assert len(found["pieces"]) > 1
    near = [one["token"] for one in found["neighbours"]]
    assert not set(near) & set(found["pieces"])
    assert not set(near) & set(model.tokenizer.special_tokens.values())
    assert words_table([found]).startswith(f"{word} ({' '.join(found['pieces'])})")


def test_word_outside_the_vocabulary_is_refused(model: Model) -> None:
    with pytest.raises(DataError, match="'犬': expected a word of the vocabulary"):
        nearest_words(model, ["犬"])
    with pytest.raises(DataError, match="'': expected a word"):
        nearest_words(model, [""])
