"""Regularization for small data, each against its paper's definition."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import ConfigError
from finetune.training.config import RegularizationConfig
from finetune.training.regularization import (
    mixout,
    pretrained_weights,
    pull_to_pretrained,
    put_mixout,
    r_drop_loss,
    reinitialise,
    symmetric_kl,
)


def tiny_encoder(**changes: Any) -> Encoder:
    """Three blocks whose weights are nowhere what a fresh encoder has."""
    config: dict[str, Any] = {
        "vocab_size": 30,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 8,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(**config | changes))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    return encoder


def batch() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(16).view(2, 8)}


class TestReinitialise:
    @pytest.mark.parametrize("count", [0, 1, 2, 3])
    @pytest.mark.parametrize("norm", ["pre", "post", "output, rms"])
    def test_the_top_blocks_are_fresh_and_the_rest_is_untouched(
        self, count: int, norm: str
    ) -> None:
        position, _, kind = norm.partition(", ")
        encoder = tiny_encoder(norm_position=position, norm=kind or "layer")
        before = copy.deepcopy(encoder.state_dict())
        reinitialise(encoder, count, seed=1)
        fresh = tuple(f"blocks.{n}." for n in range(3 - count, 3))
        fresh += ("final_norm.",) if count else ()
        for name, tensor in encoder.state_dict().items():
            assert torch.equal(tensor, before[name]) != name.startswith(fresh or "-"), name

    @pytest.mark.parametrize("score", ["scaled_dot", "bilinear"])
    def test_fresh_weights_are_distributed_as_those_of_a_new_encoder(self, score: str) -> None:
        encoder = tiny_encoder(hidden_size=64, intermediate_size=256, attention_score=score)
        reinitialise(encoder, 1, seed=1)
        new = dict(Encoder(encoder.config).blocks[2].named_parameters())
        for name, parameter in encoder.blocks[2].named_parameters():
            expected = new[name]
            spread = float(expected.detach().std())
            assert float(parameter.detach().std()) == pytest.approx(spread, rel=0.1), name
            if expected.ndim == 1 or "score" in name:  # biases, norms, a score's own start
                assert torch.equal(parameter, expected), name

    def test_the_seed_alone_decides_and_other_draws_are_not_disturbed(self) -> None:
        encoders = [tiny_encoder() for _ in range(3)]
        for encoder, seed, others in zip(encoders, (1, 1, 2), (5, 6, 6), strict=True):
            torch.manual_seed(others)
            state = torch.get_rng_state()
            reinitialise(encoder, 2, seed)
            assert torch.equal(torch.get_rng_state(), state)
        first, again, other = (encoder.blocks[1].attention.query.weight for encoder in encoders)  # type: ignore[union-attr]
        assert torch.equal(first, again)  # type: ignore[arg-type]
        assert not torch.equal(first, other)  # type: ignore[arg-type]
        assert not torch.equal(first, encoders[0].blocks[2].attention.query.weight)  # type: ignore[arg-type, union-attr]

    def test_the_tensors_stay_the_same_objects(self) -> None:
        encoder = tiny_encoder()
        before = [id(parameter) for parameter in encoder.parameters()]
        reinitialise(encoder, 2, seed=1)
        assert [id(parameter) for parameter in encoder.parameters()] == before

    def test_more_blocks_than_there_are_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="reinit_blocks: expected at most 3, .*got 4"):
            reinitialise(tiny_encoder(), 4, seed=1)


class TestPretrainedWeights:
    def test_they_are_copies_of_all_that_is_not_fresh(self) -> None:
        encoder = tiny_encoder(norm_position="pre")
        all_names = {name for name, _ in encoder.named_parameters()}
        assert pretrained_weights(encoder).keys() == all_names
        kept = pretrained_weights(encoder, reinit_blocks=2)
        fresh = ("blocks.1.", "blocks.2.", "final_norm.")
        assert kept.keys() == {name for name in all_names if not name.startswith(fresh)}
        before = kept["blocks.0.attention.query.weight"].clone()
        nn.init.zeros_(encoder.blocks[0].attention.query.weight)  # type: ignore[union-attr, arg-type]
        assert torch.equal(kept["blocks.0.attention.query.weight"], before)


class TestMixout:
    @pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
    def test_each_weight_is_one_of_the_two_values_of_the_definition(self, p: float) -> None:
        torch.manual_seed(0)
        w, u = torch.randn(200, 300), torch.randn(200, 300)
        mixed = mixout(w, u, p)
        read_pretrained = (mixed - u).abs() < 1e-6
        mask = (~read_pretrained).float()  # M of the paper
        definition = (mask * w + (1 - mask) * u - p * u) / (1 - p)
        torch.testing.assert_close(mixed, definition, atol=2e-4, rtol=2e-4)  # p is rounded to 2^-16
        deviation = math.sqrt(p * (1 - p) / w.numel())
        assert float(read_pretrained.float().mean()) == pytest.approx(p, abs=5 * deviation)

    def test_its_expectation_is_the_weight(self) -> None:
        torch.manual_seed(0)
        w, u = torch.randn(20), torch.randn(20)
        mean = torch.stack([mixout(w, u, 0.7) for _ in range(20_000)]).mean(dim=0)
        deviation = (w - u).abs() * math.sqrt(0.7 / 0.3 / 20_000)
        assert ((mean - w).abs() < 5 * deviation).all()

    def test_without_a_pretrained_weight_it_is_dropout(self) -> None:
        w = torch.randn(50, 50)
        torch.manual_seed(1)
        mixed = mixout(w, torch.zeros(50, 50), 0.5)
        kept = mixed != 0
        assert torch.equal(mixed[kept], w[kept] * 2)

    def test_the_pretrained_weights_themselves_are_left_as_they_are(self) -> None:
        w = torch.randn(50, 50)
        assert torch.equal(mixout(w, w.clone(), 0.9), w)

    def test_the_gradient_is_that_of_what_was_read(self) -> None:
        w, u = torch.randn(50, 50, requires_grad=True), torch.randn(50, 50)
        mixed = mixout(w, u, 0.75)
        mixed.sum().backward()
        read_pretrained = mixed == u
        expected = torch.where(read_pretrained, 0.0, 4.0)
        assert w.grad is not None
        torch.testing.assert_close(w.grad, expected)

    def test_the_generator_s_seed_decides(self) -> None:
        w, u = torch.randn(9, 9), torch.randn(9, 9)
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(mixout(w, u, 0.5))
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[0], drawn[2])


class TestMixoutInTheEncoder:
    def encoder(self, p: float = 0.5, fresh: int = 0, **changes: Any) -> Encoder:
        """An encoder that has moved away from its pretrained weights."""
        encoder = tiny_encoder(**changes)
        put_mixout(encoder, pretrained_weights(encoder, fresh), p)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(0.1)
        return encoder

    def test_names_and_tensors_do_not_change(self) -> None:
        encoder = tiny_encoder()
        names, tensors = list(encoder.state_dict()), dict(encoder.named_parameters())
        put_mixout(encoder, pretrained_weights(encoder), 0.5)
        assert list(encoder.state_dict()) == names
        assert {n: id(p) for n, p in encoder.named_parameters()} == {
            n: id(p) for n, p in tensors.items()
        }
        for modules in encoder.layer_groups().values():
            for module in modules:
                assert all(part.training for part in module.modules())

    def test_in_eval_mode_nothing_is_mixed(self) -> None:
        plain = tiny_encoder()
        mixed = self.encoder()
        plain.load_state_dict(mixed.state_dict())
        expected = plain.eval()(batch()).last_hidden_state
        assert torch.equal(mixed.eval()(batch()).last_hidden_state, expected)
        assert not torch.equal(mixed.train()(batch()).last_hidden_state, expected)

    def test_every_linear_layer_that_is_not_fresh_is_mixed(self) -> None:
        encoder = self.encoder(fresh=1)
        kinds = {
            path: type(part).__name__
            for path, part in encoder.named_modules()
            if isinstance(part, nn.Linear)
        }
        assert len(kinds) == 3 * 6
        for path, kind in kinds.items():
            assert (kind == "Linear") == path.startswith("blocks.2."), path

    def test_frozen_layers_and_zero_draw_nothing(self) -> None:
        encoder = self.encoder()
        encoder.requires_grad_(False)
        state = torch.get_rng_state()
        encoder(batch())
        assert torch.equal(torch.get_rng_state(), state)
        untouched = tiny_encoder()
        put_mixout(untouched, pretrained_weights(untouched), 0.0)
        assert {type(part).__name__ for part in untouched.modules()}.isdisjoint({"MixoutLinear"})

    def test_computing_blocks_again_in_the_backward_pass_mixes_the_same_weights(self) -> None:
        gradients = []
        for again in (False, True):
            encoder = self.encoder(gradient_checkpointing=again)
            torch.manual_seed(3)
            encoder(batch()).last_hidden_state.square().sum().backward()
            gradients.append([p.grad for p in encoder.parameters() if p.grad is not None])
        for plain, computed_again in zip(*gradients, strict=True):
            assert torch.equal(plain, computed_again)

    def test_a_copy_can_be_made(self) -> None:
        encoder = self.encoder()
        twin = copy.deepcopy(encoder)
        for one in (encoder, twin):
            torch.manual_seed(4)
            one.output = one(batch()).last_hidden_state  # type: ignore[assignment]
        assert torch.equal(encoder.output, twin.output)  # type: ignore[arg-type]


class TestL2SP:
    def test_it_adds_the_gradient_of_the_papers_penalty(self) -> None:
        encoder = tiny_encoder()
        start = pretrained_weights(encoder, reinit_blocks=1)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.add_(torch.randn_like(parameter))
        encoder(batch()).last_hidden_state.square().sum().backward()
        task = {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None}
        pull_to_pretrained(encoder, start, 0.3)

        twin = copy.deepcopy(encoder)
        twin.zero_grad()
        terms = [(p - start[n]).square().sum() for n, p in twin.named_parameters() if n in start]
        (0.3 / 2 * torch.stack(terms).sum()).backward()  # α/2 ‖w - w⁰‖²
        penalty = {n: p.grad for n, p in twin.named_parameters() if p.grad is not None}
        for name, parameter in encoder.named_parameters():
            expected = task[name] + penalty[name] if name in start else task[name]
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, expected)

    def test_frozen_tensors_get_no_gradient_and_zero_strength_none_at_all(self) -> None:
        encoder = tiny_encoder()
        start = {name: torch.zeros_like(w) for name, w in pretrained_weights(encoder).items()}
        pull_to_pretrained(encoder, start, 1.0)
        assert all(parameter.grad is None for parameter in encoder.parameters())
        for parameter in encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        pull_to_pretrained(encoder, start, 0.0)
        assert not any(p.grad.any() for p in encoder.parameters() if p.grad is not None)

    def test_at_the_pretrained_weights_there_is_no_pull(self) -> None:
        encoder = tiny_encoder()
        for parameter in encoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
        pull_to_pretrained(encoder, pretrained_weights(encoder), 10.0)
        assert not any(p.grad.any() for p in encoder.parameters() if p.grad is not None)


class TestRDrop:
    def test_it_is_half_the_sum_of_both_divergences(self) -> None:
        one, other = torch.randn(5, 3), torch.randn(5, 3)
        p, q = one.softmax(dim=-1), other.softmax(dim=-1)
        expected = ((p * (p / q).log()).sum(dim=-1) + (q * (q / p).log()).sum(dim=-1)) / 2
        torch.testing.assert_close(symmetric_kl(one, other), expected.mean())
        by_torch = sum(
            F.kl_div(b.log_softmax(-1), a.log_softmax(-1), log_target=True, reduction="batchmean")
            for a, b in ((one, other), (other, one))
        )
        torch.testing.assert_close(symmetric_kl(one, other), by_torch / 2)

    def test_it_is_symmetric_and_zero_for_equal_distributions(self) -> None:
        one, other = torch.randn(5, 3), torch.randn(5, 3)
        assert torch.equal(symmetric_kl(one, other), symmetric_kl(other, one))
        assert float(symmetric_kl(one, one + 3)) == pytest.approx(0, abs=1e-6)

    def test_gradients_flow_into_both_passes_and_bear_extreme_logits(self) -> None:
        one = torch.tensor([[200.0, -200.0]], requires_grad=True)
        other = torch.tensor([[-200.0, 200.0]], requires_grad=True)
        symmetric_kl(one, other).backward()
        for logits in (one, other):
            assert logits.grad is not None
            assert logits.grad.isfinite().all()
            assert logits.grad.any()

    def test_the_objective_is_half_of_the_papers(self) -> None:
        logits = (torch.randn(5, 3), torch.randn(5, 3))
        labels = torch.tensor([0, 1, 2, 0, 1])
        losses = (F.cross_entropy(logits[0], labels), F.cross_entropy(logits[1], labels))
        paper = losses[0] + losses[1] + 0.7 * symmetric_kl(*logits)  # equation 4
        torch.testing.assert_close(r_drop_loss(losses, logits, 0.7), paper / 2)
        same = (logits[0], logits[0])
        single = r_drop_loss((losses[0], losses[0]), same, 5.0)
        torch.testing.assert_close(single, losses[0])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"mixout": 1.0}, r"mixout must be a number from 0 to below 1.*, got 1"),
        (
            {"label_smoothing": -0.1},
            r"label_smoothing must be a number from 0 to below 1.*, got -0.1",
        ),
        ({"reinit_blocks": -1}, "reinit_blocks must be .* from 0 to .*, got -1"),
        ({"l2_sp": -0.5}, "l2_sp must be .* from 0 to .*, got -0.5"),
        ({"r_drop": math.inf}, "r_drop must be .* from 0 to .*, got inf"),
    ],
)
def test_settings_out_of_range_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RegularizationConfig(**setting)


def test_settings_can_be_read_from_flags() -> None:
    from finetune.settings import fields as settings

    found = settings.read(
        RegularizationConfig, None, {"reinit_blocks": "2", "mixout": "0.9", "r_drop": "1"}
    )
    assert found == RegularizationConfig(reinit_blocks=2, mixout=0.9, r_drop=1.0)
    assert RegularizationConfig() == settings.read(RegularizationConfig)
