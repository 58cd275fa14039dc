from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from finetune.errors import ConfigError
from finetune.heads import HeadConfig, Span, SpanConfig, best_spans
from tests.made.nets import tiny_config

D = 8
CONFIG = tiny_config(vocab_size=30, hidden_size=D)


def head(n_best: int = 4, max_answer_length: int = 3, **settings: Any) -> Span:
    return Span(CONFIG, HeadConfig(**settings), SpanConfig(n_best, max_answer_length))


def all_spans(
    starts: Tensor, ends: Tensor, context: tuple[int, int], n_best: int, max_answer_length: int
) -> list[tuple[float, float, float]]:
    """Look at every span of one window; slow, and nothing but the definition."""
    low, high = context
    found = [
        ((starts[first] + ends[last]).item(), first, last)
        for first in range(low, high)
        for last in range(first, high)
        if last - first + 1 <= max_answer_length
    ]
    found.sort(key=lambda span: (-span[0], span[1], span[2]))
    kept = [(first, last, score) for score, first, last in found[:n_best]]
    return kept + [(-1, -1, -torch.inf)] * (n_best - len(kept))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_best_spans_are_those_of_a_search_over_all_spans(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 12))
    # Few different numbers, so that many spans have the same score.
    logit = data.draw(
        st.sampled_from([st.integers(-2, 2), st.floats(-9, 9, width=32, allow_subnormal=False)])
    )
    rows = data.draw(st.integers(1, 3))
    line = st.lists(logit, min_size=length, max_size=length)
    starts, ends = (torch.tensor([data.draw(line) for _ in range(rows)]).float() for _ in range(2))
    pair = st.tuples(st.integers(0, length), st.integers(0, length)).map(sorted)
    context = torch.tensor([data.draw(pair) for _ in range(rows)])
    n_best, longest = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 14))
    found = best_spans(starts, ends, context, n_best, longest)
    expected = [
        all_spans(starts[row], ends[row], tuple(context[row].tolist()), n_best, longest)
        for row in range(rows)
    ]
    assert torch.equal(found, torch.tensor(expected))


def test_best_spans_of_a_long_window_are_those_of_a_search_over_all_spans() -> None:
    generator = torch.Generator().manual_seed(3)
    starts, ends = torch.randn(2, 2, 384, generator=generator)
    context = torch.tensor([[17, 383], [60, 200]])
    found = best_spans(starts, ends, context, 20, 30)
    for row in range(2):
        first, last = context[row].tolist()
        expected = all_spans(starts[row], ends[row], (first, last), 20, 30)
        assert torch.equal(found[row], torch.tensor(expected))


def test_equal_scores_go_by_position() -> None:
    zeros = torch.zeros(1, 5)
    found = best_spans(zeros, -zeros, torch.tensor([[1, 4]]), 5, 2)
    assert found[0, :, :2].tolist() == [[1, 1], [1, 2], [2, 2], [2, 3], [3, 3]]


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_a_span_without_a_score_is_no_span(bad: float) -> None:
    starts = torch.tensor([[0.0, 1.0, bad, 3.0]])
    found = best_spans(starts, torch.zeros(1, 4), torch.tensor([[1, 3]]), 2, 1)
    assert found.tolist() == [[[1, 1, 1], [-1, -1, -torch.inf]]]


@pytest.mark.parametrize("extra", [1, 7, 40])
def test_padding_changes_neither_outputs_nor_loss(extra: int) -> None:
    generator = torch.Generator().manual_seed(0)
    net, hidden = head(n_best=20).eval(), torch.randn(2, 9, D, generator=generator)
    batch = {"context": torch.tensor([[3, 8], [2, 7]])}
    labels = torch.tensor([[3, 5], [0, 0]])
    plain = net(hidden)
    # What stands in the padding would be the best answer by far.
    padded = F.pad(hidden, (0, 0, 0, extra), value=1e4)
    mask = (torch.arange(9 + extra) < 9).expand(2, -1)
    logits = net(padded, mask)
    torch.testing.assert_close(logits[:, :9], plain)
    torch.testing.assert_close(net.outputs(logits, batch), net.outputs(plain, batch))
    torch.testing.assert_close(net.loss(logits, labels), net.loss(plain, labels))


def test_no_answer_comes_first_and_scores_what_cls_does() -> None:
    net = head(n_best=2)
    logits = torch.arange(24.0).reshape(2, 6, 2)
    logits[:, 0] = 100.0
    found = net.outputs(logits, {"context": torch.tensor([[3, 5], [4, 4]])})
    assert found[:, 0].tolist() == [[0, 0, 200], [0, 0, 200]]
    assert found[0, 1:].tolist() == [[4, 4, 17], [3, 4, 15]]
    assert found[1, 1:].tolist() == [[-1, -1, -torch.inf]] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_outputs_and_loss_are_float32_whatever_the_logits_are(dtype: torch.dtype) -> None:
    net, mask = head().to(dtype), torch.tensor([[True] * 5 + [False] * 2])
    logits = net(torch.randn(1, 7, D, dtype=dtype), mask)
    assert logits.dtype == dtype
    found = net.outputs(logits, {"context": torch.tensor([[2, 5]])})
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    loss = net.loss(logits, torch.tensor([[2, 3]]))
    assert loss.dtype == torch.float32
    assert loss.isfinite()


def test_loss_and_gradients_are_those_of_bert_for_question_answering() -> None:
    from transformers import BertConfig, BertForQuestionAnswering

    torch.manual_seed(0)
    theirs = BertForQuestionAnswering(
        BertConfig(vocab_size=30, hidden_size=D, num_hidden_layers=1, num_attention_heads=2,
                   intermediate_size=16)
    ).eval()  # fmt: skip
    ours = head().eval()
    ours.layer.load_state_dict(theirs.qa_outputs.state_dict())
    ids, labels = torch.randint(30, (3, 11)), torch.tensor([[0, 0], [4, 6], [10, 10]])
    expected = theirs(ids, start_positions=labels[:, 0], end_positions=labels[:, 1])
    expected.loss.backward()
    with torch.no_grad():
        hidden = theirs.bert(ids).last_hidden_state
    logits = ours(hidden)
    torch.testing.assert_close(logits[..., 0], expected.start_logits)
    torch.testing.assert_close(logits[..., 1], expected.end_logits)
    loss = ours.loss(logits, labels)
    torch.testing.assert_close(loss, expected.loss)
    loss.backward()
    torch.testing.assert_close(ours.layer.weight.grad, theirs.qa_outputs.weight.grad)
    torch.testing.assert_close(ours.layer.bias.grad, theirs.qa_outputs.bias.grad)


def test_windows_without_a_label_take_no_part_in_the_loss() -> None:
    net, logits = head(), torch.randn(3, 5, 2, requires_grad=True)
    labels = torch.tensor([[1, 2], [-100, -100], [0, 0]])
    loss = net.loss(logits, labels)
    torch.testing.assert_close(loss, net.loss(logits[[0, 2]], labels[[0, 2]]))
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()
    assert logits.grad[[0, 2]].all()


def test_loss_without_any_label_is_zero() -> None:
    logits = torch.randn(2, 5, 2, requires_grad=True)
    loss = head().loss(logits, torch.full((2, 2), -100))
    assert loss.item() == 0.0
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_dropout_is_used_only_where_it_is_set() -> None:
    hidden = torch.randn(2, 50, D)
    plain, thinned = head().train(), head(head_dropout=0.5).train()
    assert torch.equal(plain(hidden), plain(hidden))
    assert not torch.equal(thinned(hidden), thinned(hidden))


def test_its_kind_is_the_name_in_a_checkpoint() -> None:
    assert Span.kind == "span"
    assert sorted(head().state_dict()) == ["layer.bias", "layer.weight"]


@pytest.mark.parametrize("name", ["n_best", "max_answer_length"])
def test_a_setting_that_allows_no_span_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .* from 1 to .*, got 0"):
        SpanConfig(**{name: 0})
