"""A causal model writes on: the same tokens with a cache, without, alone and in a batch."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import finetune
from finetune.errors import ConfigError, DataError
from finetune.jobs.generation import GenerationConfig, TextGenerator
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tests.made.nets import tiny_encoder

PROMPTS = ["the cat", "a dog sees the good bird", "the", "a bad bird sees a"]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 7},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 1},
]


def model_of(tokenizer: Tokenizer, max_length: int = 24, **changes: Any) -> TextGenerator:
    torch.manual_seed(0)
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size, causal=True, **changes)
    return TextGenerator(Pretrainer(encoder).eval(), tokenizer, max_length=max_length)


def parameter(model: TextGenerator, name: str) -> torch.nn.Parameter:
    return dict(model.module.named_parameters())[name]


@pytest.fixture
def model(tokenizer: Tokenizer) -> TextGenerator:
    return model_of(tokenizer)


@pytest.mark.parametrize(
    "variant",
    [
        *({"position": name} for name in ("learned", "rotary", "sinusoidal", "none")),
        *({"block": name} for name in ("lstm", "conv")),  # they have no keys and values
    ],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_cache_and_a_batch_change_no_token(
    tokenizer: Tokenizer, variant: dict[str, Any], way: dict[str, Any]
) -> None:
    model = model_of(tokenizer, **variant)
    together = [row["ids"] for row in model.generate(PROMPTS, max_tokens=9, **way)]
    alone = [model.generate(text, max_tokens=9, **way)[0]["ids"] for text in PROMPTS]
    assert together == alone
    assert max(map(len, together)) > 2
    prompts = model._encoded(PROMPTS, PROMPTS)
    uncached = model._batch(prompts, GenerationConfig(9, **way), use_cache=False)
    assert [row["ids"] for row in uncached] == together


def test_greedy_tokens_are_the_best_of_one_pass_over_the_whole_text(model: TextGenerator) -> None:
    (row,) = model.generate("the cat", max_tokens=6, temperature=0)
    tokenizer = model.tokenizer
    prompt = [tokenizer.cls_token_id, *tokenizer.encode_ids(["the cat"])[0]]
    ids = torch.tensor([[*prompt, *row["ids"]]])
    with torch.no_grad():
        logits = model.module.head(model.module.encoder({"input_ids": ids}).last_hidden_state[0])
    banned = sorted(tokenizer.special_ids - {tokenizer.sep_token_id})
    logits[:, banned] = -torch.inf
    best = logits[:, : tokenizer.vocab_size].argmax(-1)[len(prompt) - 1 :]
    assert best[: len(row["ids"])].tolist() == row["ids"]


def test_the_seed_decides_and_other_prompts_draw_other_numbers(model: TextGenerator) -> None:
    def ids(text: str, seed: int) -> list[int]:
        return list(model.generate(text, seed=seed, max_tokens=12)[0]["ids"])

    assert ids("the cat", 1) == ids("the cat", 1)
    assert ids("the cat", 1) != ids("the cat", 2)
    assert ids("the cat", 1) != ids("the dog", 1)


def test_a_text_ends_at_a_stop_at_its_length_and_where_the_encoder_ends(
    tokenizer: Tokenizer,
) -> None:
    model = model_of(tokenizer, max_length=8)
    (row,) = model.generate("the cat", max_tokens=3)
    assert (row["ended"], len(row["ids"])) == ("max_tokens", 3)
    (row,) = model.generate("the cat", max_tokens=100, seed=3)
    assert row["ended"] in ("max_length", "end")
    ends = {model.generate("the cat", seed=seed)[0]["ended"] for seed in range(20)}
    assert "max_length" in ends
    whole = model.generate("the cat", max_tokens=5, seed=5)[0]["text"]
    stop = whole[3:6]
    (row,) = model.generate("the cat", max_tokens=5, seed=5, stop=["#never#", stop])
    assert (row["ended"], row["text"]) == ("stop", whole[: whole.index(stop)])


def test_the_end_of_a_document_ends_the_text(model: TextGenerator) -> None:
    with torch.no_grad():
        parameter(model, "head.bias")[model.tokenizer.sep_token_id] = 1e4
    (row,) = model.generate("the cat")
    assert (row["ids"], row["text"], row["ended"]) == ([], "", "end")


def test_no_special_token_is_written(model: TextGenerator) -> None:
    with torch.no_grad():
        parameter(model, "head.bias")[model.tokenizer.mask_token_id] = 1e4
    (row,) = model.generate("the cat", max_tokens=20)
    assert not set(row["ids"]) & model.tokenizer.special_ids


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stop", [[], ["xyz"]])
def test_the_pieces_of_a_stream_are_the_text(
    model: TextGenerator, way: dict[str, Any], stop: list[str]
) -> None:
    pieces: list[str] = []
    (row,) = model.generate("the cat", max_tokens=15, stop=stop, on_text=pieces.append, **way)
    assert "".join(pieces) == row["text"]
    assert sum(map(bool, pieces)) > 1


def test_a_piece_never_shows_the_beginning_of_a_stop(model: TextGenerator) -> None:
    whole = model.generate("the cat", max_tokens=12, seed=2)[0]["text"]
    for start, end in itertools.combinations(range(0, len(whole), 5), 2):
        pieces: list[str] = []
        stop = [whole[start:end]]
        model.generate("the cat", max_tokens=12, seed=2, stop=stop, on_text=pieces.append)
        assert "".join(pieces) == whole[: whole.index(stop[0])]


def test_rows_keep_their_ids_and_their_order(model: TextGenerator) -> None:
    model.batch_size = 2
    rows = [{"text": text} | ({"id": "own"} if text == "the" else {}) for text in PROMPTS]
    answers = model.predict(rows)
    assert [row["id"] for row in answers] == [0, 1, "own", 3]
    assert [row["prompt"] for row in answers] == PROMPTS


def test_bad_prompts_and_settings_are_refused_in_a_line(model: TextGenerator) -> None:
    for empty in ("", "  "):
        with pytest.raises(DataError, match=r"prompts\[0\]: expected a text to continue, got none"):
            model.generate(empty)
    with pytest.raises(DataError, match="the prompt has 31 tokens, but the encoder reads 24"):
        model.generate("the cat " * 15)
    with pytest.raises(ConfigError, match="top_p must be a number above 0 and at most 1, got 0"):
        model.generate("the", top_p=0.0)
    with pytest.raises(ConfigError, match="stop must be texts that can appear"):
        model.generate("the", stop=[""])
    with pytest.raises(ConfigError, match="on_text is for one prompt, got 2"):
        model.generate(["a", "b"], on_text=print)
    with pytest.raises(DataError, match="expected the field 'text'"):
        model.generate([{"question": "the"}])


def test_other_runs_say_what_they_can_do(world: Any) -> None:
    with pytest.raises(ConfigError, match=r"predict fills in \[MASK\]"):
        finetune.load(Path(world.pretrained)).generate("the cat")
