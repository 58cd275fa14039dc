from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from finetune.decoder import DecoderConfig, SearchConfig
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.heads import HeadConfig, Seq2Seq, cross_entropy
from finetune.training.config import RegularizationConfig
from finetune.training.loop.finetuner import FineTuner
from tasks.write.task import WriteTask

CONFIG = EncoderConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    initializer_range=0.3,
)
TARGETS = torch.tensor([[2, 7, 9], [2, 8, 0]])
LABELS = torch.tensor([7, 9, 3, 8, 3, -100])


def head(pooling: str | None = None, beams: int = 2, layers: str = "last", **more: Any) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(
        CONFIG,
        HeadConfig(pooling=pooling, layers=layers),
        DecoderConfig().shape(CONFIG),
        start=2,
        end=3,
        search=SearchConfig(beams=beams, max_target_length=8),
        **more,
    ).eval()


def states() -> torch.Tensor:
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def test_words_going_in_and_out_share_their_weights() -> None:
    net = head()
    assert net.output.weight is net.decoder.embeddings.word_embeddings.weight
    assert not any("output.decoder" in name for name in net.state_dict())


def test_loss_is_the_mean_over_the_tokens_of_the_targets() -> None:
    net = head()
    logits = net(states(), MASK, TARGETS)
    by_hand = F.cross_entropy(logits[:5], LABELS[:5])
    torch.testing.assert_close(net.loss(logits, LABELS), by_hand)


def test_label_smoothing_is_that_of_its_formula() -> None:
    logits = head()(states(), MASK, TARGETS)[:5]
    log_probs = logits.log_softmax(dim=-1)
    right = log_probs.gather(1, LABELS[:5, None]).squeeze(1)
    by_hand = -(0.9 * right + 0.1 * log_probs.mean(dim=-1)).mean()
    torch.testing.assert_close(cross_entropy(logits, LABELS[:5], label_smoothing=0.1), by_hand)


def test_training_smooths_labels_and_leaves_out_what_is_behind_the_end() -> None:
    net = head()
    logits = net(states(), MASK, TARGETS)
    smoothing = RegularizationConfig(label_smoothing=0.1)
    tuner = FineTuner(Encoder(CONFIG), net, WriteTask(), regularization=smoothing)
    expected = cross_entropy(logits[:5], LABELS[:5], label_smoothing=0.1)
    torch.testing.assert_close(tuner._loss(logits, LABELS), expected)
    assert not torch.isclose(expected, net.loss(logits, LABELS))


@pytest.mark.parametrize("beams", [1, 3])
def test_the_score_of_what_is_written_is_that_of_teacher_forcing(beams: int) -> None:
    """The cache and the search give the log-probabilities that the whole target has."""
    net = head(beams=beams)
    found = net.search_targets(states(), MASK)
    inputs = torch.cat((torch.full((2, 1), 2), found.ids[:, :-1]), dim=1)
    log_probs = net(states(), MASK, inputs).log_softmax(dim=-1)
    each = log_probs.gather(1, found.ids.view(-1, 1)).view(2, -1)
    counts = (found.ids != 3).sum(dim=1).add(1).clamp(max=8)
    written = torch.arange(8) < counts[:, None]
    totals = (each * written).sum(dim=1) / ((5 + counts) / 6) ** 0.6
    torch.testing.assert_close(found.scores, totals)


def test_without_attention_the_decoder_reads_one_vector() -> None:
    mean = head("mean")
    shifted = states()
    shifted[0, 0] += 1.0
    shifted[0, 1] -= 1.0  # the mean stays
    targets = TARGETS[:1]
    logits = [mean(one[:1], None, targets) for one in (states(), shifted)]
    torch.testing.assert_close(logits[0], logits[1])
    attending = head()
    logits = [attending(one[:1], None, targets) for one in (states(), shifted)]
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize("pooling", ["cls", "last", "mean", "max", "concat", "attention"])
def test_any_pooling_of_one_text_writes(pooling: str) -> None:
    assert head(pooling).generate(states(), {"attention_mask": MASK}).shape == (2, 9)


def test_all_layers_may_be_mixed() -> None:
    net = head(layers="mix")
    assert net.all_layers
    assert net.generate(torch.stack((states(), states())), {}).shape == (2, 9)


def test_its_settings_build_it_again() -> None:
    settings = head("mean", cross_score="additive").settings()
    assert EncoderConfig.from_dict(settings["decoder"]) == DecoderConfig().shape(CONFIG)
    assert (settings["pooling"], settings["cross_score"]) == ("mean", "additive")


def test_a_pooling_of_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match="compares two texts, and a decoder reads one source"):
        head("segments")


def test_targets_beyond_the_positions_are_refused() -> None:
    shape = DecoderConfig().shape(dataclasses.replace(CONFIG, max_position_embeddings=7))
    search = SearchConfig(max_target_length=64)
    with pytest.raises(ConfigError, match=r"max_target_length \(64\) must be at most the 7 pos"):
        Seq2Seq(CONFIG, HeadConfig(), shape, start=2, end=3, search=search)
    assert Seq2Seq(CONFIG, HeadConfig(), shape, start=2, end=3).max_target_length == 7


@pytest.mark.parametrize("pooling", [None, "mean"])
@pytest.mark.parametrize("score", ["dot", "bilinear"])
def test_counted_operations_are_those_that_torch_counts(score: str, pooling: str | None) -> None:
    net, hidden = head(pooling, cross_score=score), states()[:1]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        memory, _ = net._memory(hidden, None)
        written = net.decoder(TARGETS[:1], memory, output_attentions=True).last_hidden_state
        net.output(written.flatten(0, 1))
    fused = 4 * 3**2 * 16  # self-attention's scores and mixing, in a kernel that is not counted
    assert net.flops(5, 3) == pytest.approx(counter.get_total_flops() + fused)


def test_a_training_step_counts_its_decoder() -> None:
    net = head()
    tuner = FineTuner(Encoder(CONFIG), net, WriteTask())
    alone = tuner.flops_per_token(5)
    net(states(), MASK, TARGETS)
    assert tuner.flops_per_token(5) == pytest.approx(alone + 3 * net.flops(5, 3) / 5)
