"""A causal model on text: each token once, in the units that other tokenizers share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.encoder.memory import Memory
from finetune.errors import ConfigError, DataError
from finetune.jobs.corpus_score import Text, score_tokens, sliding_windows
from finetune.jobs.generation import TextGenerator
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tests.made.nets import tiny_encoder
from tests.made.texts import sentences


@pytest.fixture
def model(tokenizer: Tokenizer) -> TextGenerator:
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size, causal=True)
    return TextGenerator(Pretrainer(encoder).eval(), tokenizer, max_length=12)


@pytest.fixture
def text(tokenizer: Tokenizer, tmp_path: Path) -> Text:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(sentences(2, 8)), encoding="utf-8")
    return Text.read([str(file)], tokenizer)


@pytest.mark.parametrize("count", [1, 5, 12, 13, 40])
@pytest.mark.parametrize("stride", [1, 3, 5])
@pytest.mark.parametrize("prefix", [0, 1])
def test_windows_score_each_token_once_with_all_the_context_there_is(
    count: int, stride: int, prefix: int
) -> None:
    windows = sliding_windows(count, context=6, stride=stride, prefix=prefix)
    scored = [token for _, first, end in windows for token in range(first, end)]
    assert scored == list(range(0 if prefix else 1, count))
    for start, first, end in windows:
        assert 0 <= start <= first
        assert prefix + end - 1 - start <= 6
        assert start == 0 or prefix + end - 1 - start == 6


def test_a_token_has_the_probability_that_its_window_gives_it(
    model: TextGenerator, text: Text
) -> None:
    scores = score_tokens(model, text.ids, stride=4)
    windows = sliding_windows(len(text.ids), 12, 4, 1)
    place = 0
    for start, first, end in windows:
        ids = torch.tensor([[model.tokenizer.cls_token_id, *text.ids[start:end]]])
        with torch.no_grad():
            hidden = model.module.encoder({"input_ids": ids[:, :-1]}).last_hidden_state[0]
            chances = model.module.head(hidden).log_softmax(-1)
        for token in range(first, end):
            row = token - start
            expected = -chances[row, text.ids[token]].item()
            assert scores.nats[place] == pytest.approx(expected, abs=1e-5)
            assert scores.seen[place] == row + 1
            assert scores.right[place] == (chances[row].argmax() == text.ids[token])
            place += 1
    assert place == len(text.ids) == len(scores.nats)


def test_figures_are_of_tokens_words_and_bytes(model: TextGenerator, text: Text) -> None:
    content = sentences(2, 8)
    assert text.words == sum(len(one.split()) for one in content)
    assert text.bytes == sum(len(one.encode()) for one in content)
    assert list(text.ids).count(model.tokenizer.sep_token_id) == len(content)
    scores = score_tokens(model, text.ids, stride=6)
    metrics = scores.metrics(text)
    total = float(np.sum(scores.nats))
    assert metrics["nats_per_token"] == pytest.approx(total / len(text.ids))
    assert metrics["word_perplexity"] == pytest.approx(math.exp(total / text.words))
    assert metrics["bits_per_byte"] == pytest.approx(total / math.log(2) / text.bytes)


def test_a_model_that_knows_nothing_has_the_perplexity_of_a_guess(
    model: TextGenerator, text: Text
) -> None:
    with torch.no_grad():
        for weights in model.module.parameters():
            weights.zero_()
    nats = score_tokens(model, text.ids, stride=6).nats
    np.testing.assert_allclose(nats, math.log(model.tokenizer.vocab_size), rtol=1e-6)


def test_more_context_for_each_token_costs_more_windows_and_changes_no_count(
    model: TextGenerator, text: Text
) -> None:
    wide, narrow = (score_tokens(model, text.ids, stride) for stride in (12, 1))
    assert len(wide.nats) == len(narrow.nats) == len(text.ids)
    assert narrow.seen[12:].min() == 12 > wide.seen[12:].min()


@torch.no_grad()
def test_a_memory_is_the_text_before_a_window(tokenizer: Tokenizer, text: Text) -> None:
    more: dict[str, Any] = {"position": "relative", "memory": 7}
    encoder = tiny_encoder(vocab_size=tokenizer.vocab_size, causal=True, **more)
    module = Pretrainer(encoder).eval()
    model = TextGenerator(module, tokenizer, max_length=6)
    scores = score_tokens(model, text.ids)
    memory, expected = Memory(7), []
    for start in range(0, len(text.ids) - 1, 5):  # each token is read once, behind [CLS]
        block = [tokenizer.cls_token_id, *text.ids[start : start + 5].tolist()]
        hidden = encoder({"input_ids": torch.tensor([block])}, memory=memory).last_hidden_state
        chances = module.head(hidden[0])[:, : tokenizer.vocab_size].log_softmax(-1)
        first = 1 if start else 0
        labels = text.ids[start + first : start + 6]
        expected += [-float(chances[first + n, label]) for n, label in enumerate(labels)]
    np.testing.assert_allclose(scores.nats, expected, atol=1e-5)
    assert scores.seen[:8].tolist() == [1, 2, 3, 4, 5, 6, 8, 9]
    with pytest.raises(ConfigError, match=r"stride \(3\): expected none, as an encoder with a"):
        score_tokens(model, text.ids, stride=3)


def test_a_stride_beyond_the_context_and_an_empty_text_are_refused(
    model: TextGenerator, text: Text, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"stride \(13\) must not exceed 12"):
        score_tokens(model, text.ids, stride=13)
    for content in ("\n\n", "\x01\x02\n"):  # control characters: WordPiece reads none
        (tmp_path / "empty.txt").write_text(content)
        with pytest.raises(DataError, match="expected text to score, got none that the tokenizer"):
            Text.read([str(tmp_path / "empty.txt")], tokenizer)
