"""Poolings that weigh tokens or compare two texts, against their formulas written out."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor

from finetune.encoder import Encoder
from finetune.heads import (
    ALL_POOLINGS,
    POOLINGS,
    Classification,
    HeadConfig,
    MultiLabel,
    MultipleChoice,
    Regression,
    Span,
    SpanConfig,
    head_logits,
    states_for,
    text_segments,
)
from finetune.heads.config import PAIR_POOLINGS
from finetune.heads.pooling import (
    AlignPooling,
    AttentionPooling,
    ScalarMix,
    SegmentAttention,
    segment_pair,
)
from finetune.text.features.pairs import collate, encode_pairs
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import tiny_config

CLS, SEP, PAD = 2, 3, 0
CONFIG = tiny_config()
D = CONFIG.hidden_size
HEADS = {
    "classification": lambda head: Classification(CONFIG, head, 3),
    "multi_label": lambda head: MultiLabel(CONFIG, head, 3),
    "regression": lambda head: Regression(CONFIG, head),
    "choice": lambda head: MultipleChoice(CONFIG, head, 2),
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "[", "]", "SEP"]
TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "distilbert and modernbert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
}


def tokenizer_of(family: str) -> Tokenizer:
    """A tokenizer of words with the special tokens of a family around texts."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = TEMPLATES[family]
    special = [("[CLS]", CLS), ("[SEP]", SEP)]
    backend.post_processor = processors.TemplateProcessing(single, pair, special)
    backend.add_special_tokens(WORDS[:5])
    names = ("pad", "unk", "cls", "sep", "mask")
    return Tokenizer(
        backend, {f"{name}_token": word for name, word in zip(names, WORDS, strict=False)}
    )


def batch() -> dict[str, Tensor]:
    """Two pairs, `[CLS] 5 6 [SEP] 7 [SEP] [PAD]` and `[CLS] 8 [SEP] 9 5 6 [SEP]`."""
    ids = torch.tensor([[CLS, 5, 6, SEP, 7, SEP, PAD], [CLS, 8, SEP, 9, 5, 6, SEP]])
    return {"input_ids": ids, "attention_mask": ids != PAD}


@pytest.fixture
def hidden() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 7, D, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("family", TEMPLATES)
def test_each_token_is_in_its_text_whatever_the_family_writes_between(family: str) -> None:
    tokenizer = tokenizer_of(family)
    texts, seconds = ["a b", "c"], ["c", "a b [SEP] c"]  # a separator's name in a text is text
    features = encode_pairs(tokenizer, texts, seconds, 30)
    made = collate(features, [0, 1], tokenizer.pad_token_id)
    segments = text_segments(made["input_ids"], made.get("attention_mask"))
    for row, pair in enumerate(zip(texts, seconds, strict=True)):
        for number, text in enumerate(pair, start=1):
            (words,) = tokenizer.encode_ids([text])
            assert made["input_ids"][row][segments[row] == number].tolist() == words
    unchosen = made["input_ids"][segments == 0]
    assert set(unchosen.tolist()) <= {CLS, SEP, PAD}


@pytest.mark.parametrize("family", TEMPLATES)
def test_one_text_alone_is_all_of_the_first(family: str) -> None:
    features = encode_pairs(tokenizer_of(family), ["a b c"], None, 30)
    segments = text_segments(torch.tensor([list(features[0].input_ids)]))
    assert segments.tolist() == [[0, 1, 1, 1, 0]]


def test_padding_may_stand_on_either_side() -> None:
    ids = torch.tensor([[PAD, PAD, CLS, 5, SEP, 6, SEP], [CLS, 5, SEP, 6, SEP, PAD, PAD]])
    expected = [[0, 0, 0, 1, 0, 2, 0], [0, 1, 0, 2, 0, 0, 0]]
    assert text_segments(ids, ids != PAD).tolist() == expected


def test_mix_is_elmos_weighted_average_of_all_layers(hidden: Tensor) -> None:
    mix = ScalarMix(2).double().requires_grad_(False)
    states = torch.stack([hidden, hidden**2, hidden - 1])
    torch.testing.assert_close(mix(states), states.mean(dim=0))  # at the start
    mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
    mix.scale.fill_(3.0)
    total = sum(math.exp(weight) for weight in (0.5, -1.0, 2.0))
    parts = [math.exp(w) / total * h for w, h in zip((0.5, -1.0, 2.0), states, strict=True)]
    torch.testing.assert_close(mix(states), 3.0 * (parts[0] + parts[1] + parts[2]))


@pytest.mark.parametrize("kind", [*HEADS, "span"])
def test_every_head_mixes_layers_and_learns_how(kind: str) -> None:
    torch.manual_seed(0)
    settings = HeadConfig("cls", layers="mix")
    head = Span(CONFIG, settings, SpanConfig()) if kind == "span" else HEADS[kind](settings)
    encoder, made = Encoder(CONFIG), batch()
    states = states_for(head, encoder, made)
    assert states.shape == (CONFIG.num_hidden_layers + 1, 2, 7, D)  # all tokens, also for cls
    logits = head_logits(head.eval(), states, made)
    plain = copy.deepcopy(head)
    plain.mix = torch.nn.Identity()
    torch.testing.assert_close(logits, head_logits(plain, states.mean(dim=0), made))
    logits.square().sum().backward()
    assert head.mix.weights.grad.abs().min() > 0
    assert head.mix.scale.grad.abs() > 0


def test_segments_is_the_papers_comparison_of_two_means(hidden: Tensor) -> None:
    made = batch()
    pooled = segment_pair(hidden, made["attention_mask"], made["input_ids"])
    for row, (first, second) in enumerate([((1, 2), (4,)), ((1,), (3, 4, 5))]):
        u = sum(hidden[row, place] for place in first) / len(first)
        v = sum(hidden[row, place] for place in second) / len(second)
        expected = torch.cat([u, v, abs(u - v), u * v])  # type: ignore[arg-type, list-item]
        torch.testing.assert_close(pooled[row], expected, atol=1e-12, rtol=0)


def test_segments_may_have_attention_poolings_by_one_query(hidden: Tensor) -> None:
    torch.manual_seed(0)
    pool, made = SegmentAttention(D).double().requires_grad_(False), batch()
    (query,) = pool.each.query.weight.copy_(torch.randn(1, D))
    pooled = pool(hidden, made["attention_mask"], made["input_ids"])
    for row, texts in enumerate([([1, 2], [4]), ([1], [3, 4, 5])]):
        vectors = []
        for text in texts:
            states = hidden[row, text]
            weights = torch.exp(states @ query)
            vectors.append((weights[:, None] * states).sum(0) / weights.sum())
        u, v = vectors
        expected = torch.cat([u, v, abs(u - v), u * v])
        torch.testing.assert_close(pooled[row], expected, atol=1e-12, rtol=0)


def test_the_head_of_segments_is_a_norm_and_one_hidden_layer(hidden: Tensor) -> None:
    head = Classification(CONFIG, HeadConfig("segments"), 3).double().eval()
    weights, made = head.state_dict(), batch()
    pooled = segment_pair(hidden, made["attention_mask"], made["input_ids"])
    centred = pooled - pooled.mean(dim=-1, keepdim=True)
    normalized = centred / (centred.square().mean(dim=-1, keepdim=True)).sqrt()
    inner = (normalized @ weights["layers.2.weight"].T + weights["layers.2.bias"]).clamp(min=0)
    expected = inner @ weights["layers.5.weight"].T + weights["layers.5.bias"]
    torch.testing.assert_close(head_logits(head, hidden, made), expected, atol=1e-9, rtol=0)
    assert weights["layers.2.weight"].shape == (D, 4 * D)


def compared_by_hand(
    pool: AlignPooling, text: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> Tensor:
    """Mean and maximum of what a text (states, ids) makes of the other, token by token."""
    compared = []
    for state, word in zip(*text, strict=True):
        pairs = list(zip(*other, strict=True))
        scores = [
            math.exp(state @ key / D**0.5 + pool.same_token * (word == twin)) for key, twin in pairs
        ]
        aligned = sum(
            score / sum(scores) * key for score, (key, _) in zip(scores, pairs, strict=True)
        )
        has_twin = (word == other[1]).any().double()
        numbers = torch.stack([state @ aligned / D**0.5, has_twin * D**0.5])
        features = torch.cat([abs(state - aligned), state * aligned, numbers])
        compared.append((pool.compare.weight @ features + pool.compare.bias).clamp(min=0))
    tokens = torch.stack(compared)
    return torch.cat([tokens.mean(dim=0), tokens.amax(dim=0)])


def test_align_compares_each_token_with_those_of_the_other_text_that_it_fits(
    hidden: Tensor,
) -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[CLS, 5, 6, SEP, 6, SEP, PAD], [CLS, 8, SEP, 9, 5, 8, SEP]])
    pool = AlignPooling(CONFIG).double().requires_grad_(False)
    pooled = pool(hidden, ids != PAD, ids)
    centred = hidden - hidden.mean(dim=-1, keepdim=True)
    states = centred / centred.square().mean(dim=-1, keepdim=True).sqrt()
    for row, (first, second) in enumerate([([1, 2], [4]), ([1], [3, 4, 5])]):
        u, v = ((states[row, places], ids[row, places]) for places in (first, second))
        expected = torch.cat([compared_by_hand(pool, u, v), compared_by_hand(pool, v, u)])
        torch.testing.assert_close(pooled[row], expected, atol=1e-6, rtol=0)


def test_an_equal_token_of_the_other_text_draws_attention(hidden: Tensor) -> None:
    """With states that say nothing the words alone decide: here 6 finds 6, whose state it gets."""
    ids = torch.tensor([[CLS, 6, SEP, 7, 6, 8, SEP]])
    pool = AlignPooling(CONFIG).double()
    seen: list[Tensor] = []
    pool.compare.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    pool.same_token.data.fill_(100.0)
    pool(hidden[:1], None, ids)
    states = torch.nn.functional.layer_norm(hidden[:1], (D,))
    product = states[0, 1] * states[0, 4]
    torch.testing.assert_close(seen[0][0, 1, D : 2 * D], product, atol=1e-4, rtol=0)
    flags = seen[0][0, :, -1] / D**0.5
    assert flags.tolist() == pytest.approx([0, 1, 0, 0, 1, 0, 0])


def test_the_heads_dropout_stands_before_the_comparing_layer_of_align_too() -> None:
    head = Classification(CONFIG, HeadConfig("align", head_dropout=0.5), 3)
    seen: list[Tensor] = []
    head.pool.compare.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    head_logits(head, torch.randn(2, 7, D), batch())
    head_logits(head.eval(), torch.randn(2, 7, D), batch())
    dropped, whole = (float((features[:, 1, : 2 * D] == 0).float().mean()) for features in seen)
    assert 0.3 < dropped < 0.7
    assert whole == 0


def test_align_counts_its_operations() -> None:
    """Products of states, mixing and the comparing layer of each token, and the output layers."""
    head = Classification(CONFIG, HeadConfig("align"), 3)
    comparing, output = (2 * D + 2) * D, 4 * D * D + D * 3
    assert head.flops(10) == 2 * (10 * (2 * 10 * D + comparing) + output)
    assert Classification(CONFIG, HeadConfig("segments"), 3).flops(10) == 2 * output


def test_attention_is_the_softmax_of_a_learned_query(hidden: Tensor) -> None:
    mask = batch()["attention_mask"]
    pool = AttentionPooling(D).double()
    (query,) = pool.query.weight
    for row, length in enumerate((6, 7)):
        states = hidden[row, :length]
        weights = torch.exp(states @ query)
        expected = (weights[:, None] * states).sum(0) / weights.sum()
        torch.testing.assert_close(pool(hidden, mask)[row], expected, atol=1e-12, rtol=0)
    whole = torch.ones_like(mask)
    torch.testing.assert_close(pool(hidden, None), pool(hidden, whole))
    assert not pool(hidden, torch.zeros_like(mask)).any()


@pytest.mark.parametrize("pooling", ["attention", *PAIR_POOLINGS])
@pytest.mark.parametrize("kind", HEADS)
def test_every_head_learns_by_each(kind: str, pooling: str) -> None:
    head = HEADS[kind](HeadConfig(pooling))
    hidden = torch.randn(2, 7, D, requires_grad=True)
    logits = head_logits(head, hidden, batch())
    labels = torch.zeros(len(logits), dtype=torch.int64)
    if kind in ("multi_label", "regression"):
        labels = torch.ones_like(logits)
    head.loss(logits, labels).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert hidden.grad is not None
    texts = text_segments(**batch()) > 0
    read = texts if pooling in PAIR_POOLINGS else batch()["attention_mask"]
    assert (hidden.grad.abs().sum(-1) > 0).equal(read)  # both texts; neither [CLS] nor padding


@pytest.mark.parametrize("pooling", ["attention", *PAIR_POOLINGS])
def test_padding_changes_nothing(pooling: str) -> None:
    torch.manual_seed(0)
    encoder, head = Encoder(CONFIG).eval(), HEADS["classification"](HeadConfig(pooling)).eval()
    made = batch()
    logits = head_logits(head, encoder(made).last_hidden_state, made)
    alone = {"input_ids": made["input_ids"][:1, :6]}
    expected = head_logits(head, encoder(alone).last_hidden_state, alone)
    torch.testing.assert_close(logits[:1], expected, atol=1e-6, rtol=0)


def test_a_text_without_tokens_has_a_mean_of_zeros() -> None:
    ids = torch.tensor([[CLS, SEP, 5, SEP]])
    hidden = torch.ones(1, 4, D)
    u, v, *_ = segment_pair(hidden, None, ids).chunk(4, dim=-1)
    assert not u.any()
    assert v.eq(1).all()
    u, v, *_ = SegmentAttention(D)(hidden, None, ids).chunk(4, dim=-1)
    assert not u.any()
    torch.testing.assert_close(v, torch.ones(1, D))
    mean_u, max_u, mean_v, _ = AlignPooling(CONFIG)(hidden, None, ids).chunk(4, dim=-1)
    assert not mean_u.any()
    assert not max_u.any()
    assert mean_v.isfinite().all()


def test_align_has_nothing_to_compare_a_text_with_that_stands_alone(hidden: Tensor) -> None:
    pool = AlignPooling(CONFIG).double()
    seen: list[Tensor] = []
    pool.compare.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    pool(hidden[:1], None, torch.tensor([[CLS, 5, 6, 7, 8, 9, SEP]]))
    states = torch.nn.functional.layer_norm(hidden[:1], (D,), eps=CONFIG.layer_norm_eps)
    torch.testing.assert_close(seen[0][..., :D], states.abs(), atol=1e-6, rtol=0)
    assert not seen[0][..., D:].any()


@pytest.mark.parametrize("pooling", PAIR_POOLINGS)
def test_without_ids_the_message_says_what_to_give(pooling: str) -> None:
    head = Classification(CONFIG, HeadConfig(pooling), 3)
    with pytest.raises(ValueError, match=r"got no ids; give the head input_ids as its third"):
        head(torch.zeros(1, 4, D))


def test_only_poolings_of_pairs_read_ids() -> None:
    reading = {name for name in ALL_POOLINGS if _regression(name).reads_ids}
    assert reading == set(PAIR_POOLINGS)
    assert set(ALL_POOLINGS) - set(POOLINGS) == {"attention", *PAIR_POOLINGS}


def _regression(pooling: str) -> Any:
    return Regression(CONFIG, HeadConfig(pooling))
