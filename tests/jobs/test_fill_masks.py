from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from finetune.errors import DataError
from finetune.inspection import MaskFiller, Model
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tests.made.nets import tiny_encoder
from tests.made.texts import sentences


def filler_of(tokenizer: Tokenizer, **changes: Any) -> MaskFiller:
    torch.manual_seed(0)
    module = Pretrainer(tiny_encoder(vocab_size=tokenizer.vocab_size)).eval()
    return MaskFiller(module, tokenizer, **{"max_length": 16, "top": 3, **changes})


@pytest.fixture
def filler(tokenizer: Tokenizer) -> MaskFiller:
    return filler_of(tokenizer)


def test_candidates_are_the_heads_most_probable_tokens(filler: MaskFiller) -> None:
    tokenizer = filler.tokenizer
    (found,) = filler.predict(["the [MASK] sees a [MASK]"])
    ids = [tokenizer.cls_token_id, *tokenizer.encode_ids(["the [MASK] sees a [MASK]"])[0]]
    ids.append(tokenizer.sep_token_id)
    places = [place for place, one in enumerate(ids) if one == tokenizer.mask_token_id]
    with torch.no_grad():
        batch = {"input_ids": torch.tensor([ids]), "positions": torch.tensor(places)}
        shares = filler.module(batch).softmax(-1).numpy()
    assert [mask["position"] for mask in found["masks"]] == [4, 18]
    for mask, row in zip(found["masks"], shares, strict=True):
        best = np.argsort(-row)[:3]
        names = [tokenizer.backend.id_to_token(int(number)) for number in best]
        assert [one["token"] for one in mask["candidates"]] == names
        told = [one["probability"] for one in mask["candidates"]]
        np.testing.assert_allclose(told, row[best], atol=1e-5)


def test_rows_keep_their_order_and_ids_in_any_batch(filler: MaskFiller) -> None:
    texts = [f"[MASK] {text}" for text in sentences(6, 9)]
    rows = [
        (f"texts[{number}]", {"text": text} | ({"id": "own"} if number == 4 else {}))
        for number, text in enumerate(texts)
    ]
    found = list(filler.stream(rows))
    assert [row["id"] for row in found] == [0, 1, 2, 3, "own", 5, 6, 7, 8]
    assert [row["text"] for row in found] == texts
    filler.batch_size = 1
    for one, alone in zip(found, filler.stream(rows), strict=True):
        assert list(one) == ["id", "text", "masks"]
        json.dumps(one)
        for mask, same in zip(one["masks"], alone["masks"], strict=True):
            shares = [[c["probability"] for c in m["candidates"]] for m in (mask, same)]
            np.testing.assert_allclose(*shares, atol=1e-5)


def test_texts_and_rows_are_asked_as_a_task_is(filler: MaskFiller) -> None:
    text = "the [MASK] sees"
    plain, row = filler.predict([text, {"id": "own", "text": text}])
    assert filler.predict([text]) == [plain]
    assert (plain["id"], row["id"]) == (0, "own")
    with pytest.raises(DataError, match=r"^texts\[0\]: expected the field 'text'"):
        filler.predict([{"words": text}])


def test_mask_may_be_written_as_bert_does_whatever_its_name_is() -> None:
    config = TokenizerConfig(algorithm="bpe", vocab_size=280)
    tokenizer = train_tokenizer(sentences(0, 50), config)
    text = tokenizer.backend.to_str().replace("[MASK]", "<hole>")
    import tokenizers

    renamed = Tokenizer(
        tokenizers.Tokenizer.from_str(text), {**tokenizer.special_tokens, "mask_token": "<hole>"}
    )
    filler = filler_of(renamed)
    ours, theirs = filler.predict(["the [MASK] sees", "the <hole> sees"])
    assert ours["masks"] == theirs["masks"]
    assert ours["text"] == "the [MASK] sees"


def test_text_without_a_mask_is_refused_with_its_line(filler: MaskFiller) -> None:
    with pytest.raises(DataError, match=r"texts\[1\]: expected a text with \[MASK\] in it, got"):
        filler.predict(["the [MASK]", "the cat"])
    with pytest.raises(DataError, match=r"a.jsonl:3: expected the field 'text' .* got question"):
        list(filler.stream([("a.jsonl:3", {"question": "who"})]))


def test_mask_behind_the_longest_length_is_refused(filler: MaskFiller) -> None:
    with pytest.raises(DataError, match=r"texts\[0\]: 1 of 2 masks are after the first 16 tok"):
        filler.predict(["[MASK] " + "the " * 20 + "[MASK]"])


def test_rows_behind_the_vocabulary_name_nothing(tokenizer: Tokenizer, model: Model) -> None:
    encoder = tiny_encoder()
    wide = torch.nn.Embedding(tokenizer.vocab_size + 4, 16)
    encoder.embeddings.word_embeddings = wide
    encoder.config = type(encoder.config)(
        **{**encoder.config.to_dict(), "vocab_size": tokenizer.vocab_size + 4}
    )
    filler = MaskFiller(Pretrainer(encoder).eval(), tokenizer, max_length=16, top=1000)
    candidates = filler.predict(["the [MASK]"])[0]["masks"][0]["candidates"]
    assert len(candidates) == tokenizer.vocab_size
    assert sum(one["probability"] for one in candidates) == pytest.approx(1, abs=1e-3)
