"""The range test: rates, smoothing, what made curves tell, and training that leaves no trace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import Encoder
from finetune.errors import DataError
from finetune.heads import Classification, HeadConfig
from finetune.training.config import RegularizationConfig
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.lr_finder import (
    HIGHEST,
    LOWEST,
    STEPS,
    find_rate,
    has_diverged,
    rates_of,
    slopes,
    smooth,
    suggest,
)
from finetune.training.optimizer import OptimizerConfig, make_optimizer
from finetune.training.randomness import seed_step
from finetune.training.schedules import ScheduleConfig
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Pace
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan
from finetune.training.unfreezing.rates import RatePlan
from tasks.glue.task import glue_task
from tests.made.nets import tiny_config

CPU = torch.device("cpu")
RATES = rates_of(STEPS)
CONFIG = tiny_config(vocab_size=30, max_position_embeddings=8)


def made_curve(noise: float = 0.0, seed: int = 0) -> list[float]:
    """A loss that falls by 0.3 about a rate of 1e-3 and rises from 1e-2 on."""
    decades = np.log10(RATES)
    fall = 0.3 / (1 + np.exp(-(decades + 3) / 0.25))
    rise = np.where(decades > -2, 1.5 * (decades + 2), 0.0)
    drawn = noise * np.random.default_rng(seed).standard_normal(STEPS)
    return [float(loss) for loss in 0.69 - fall + rise + drawn]


def flat_curve(noise: float, seed: int) -> list[float]:
    drawn = noise * np.random.default_rng(seed).standard_normal(STEPS)
    return [float(loss) for loss in 0.69 + drawn]


def batches(count: int = 6) -> list[dict[str, Tensor]]:
    """The label says whether the first token is above 15."""
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randint(5, 30, (8, 8), generator=generator) for _ in range(count)]
    return [
        {"index": torch.arange(8), "input_ids": ids, "labels": (ids[:, 0] > 15).long()}
        for ids in drawn
    ]


def fine_tuner(policy: str | None = None, rate_decay: float = 1.0, **more: Any) -> FineTuner:
    torch.manual_seed(0)
    module = FineTuner(
        Encoder(CONFIG),
        Classification(CONFIG, HeadConfig(), 2),
        glue_task("sst2", None),
        optimizer=OptimizerConfig(learning_rate=1e-3, rate_decay=rate_decay),
        seed=5,
        **more,
    )
    if policy is not None:
        config = UnfreezeConfig(policy)
        plan, pace = make_plan(config, 2, 9), Pace(6, 54)
        module.phases = Phases(RatePlan(plan, pace, ScheduleConfig()), config)
    return module


class Watch:
    """Keeps what a module looks like at each training step of a test."""

    def __init__(self, module: FineTuner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[dict[str, Tensor]] = []
        self.trainable: list[set[str]] = []
        self.training: list[dict[str, bool]] = []
        step = module.training_step

        def watched(batch: Any, index: int) -> Any:
            named = dict(module.named_parameters())
            self.weights.append({name: p.detach().clone() for name, p in named.items()})
            self.trainable.append({name for name, p in named.items() if p.requires_grad})
            self.training.append({name: part.training for name, part in module.named_modules()})
            return step(batch, index)

        monkeypatch.setattr(module, "training_step", watched)

    def moves(self, before: int) -> dict[str, Tensor]:
        """By how much each tensor moved in a step."""
        return {
            name: self.weights[before + 1][name] - tensor
            for name, tensor in self.weights[before].items()
        }


class TestRates:
    def test_they_grow_by_one_factor_from_the_lowest_to_the_highest(self) -> None:
        assert len(RATES) == STEPS
        assert RATES[0] == LOWEST
        assert RATES[-1] == pytest.approx(HIGHEST)
        factors = [b / a for a, b in zip(RATES, RATES[1:], strict=False)]
        assert factors == pytest.approx([10 ** (7 / 99)] * 99)

    def test_expected_values(self) -> None:
        assert rates_of(4, 1e-3, 1.0) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])


class TestSmoothing:
    def test_expected_values(self) -> None:
        # By hand: 4; (0.5 * 0.5 * 4 + 0.5 * 1) / 0.75; (0.125 * 4 + 0.25 * 1 + 0.5 * 2) / 0.875.
        assert smooth([4.0, 1.0, 2.0], 0.5) == pytest.approx([4.0, 2.0, 2.0])

    def test_the_same_as_weights_that_sum_to_one(self) -> None:
        losses = made_curve(0.1)
        for count in (1, 2, 17, 100):
            weights = 0.9 ** np.arange(count)[::-1]
            expected = np.average(losses[:count], weights=weights)
            assert smooth(losses)[count - 1] == pytest.approx(expected)

    def test_a_constant_stays_what_it_is(self) -> None:
        assert smooth([0.7] * 50) == pytest.approx([0.7] * 50)

    def test_what_follows_a_nan_is_none_either(self) -> None:
        assert [math.isnan(mean) for mean in smooth([1.0, math.nan, 1.0])] == [False, True, True]

    @pytest.mark.parametrize(
        ("smoothed", "expected"),
        [([], False), ([1.0], False), ([2.0, 1.0, 4.0], False), ([2.0, 1.0, 4.01], True)],
    )
    def test_divergence_is_four_times_the_best(self, smoothed: list[float], expected: bool) -> None:
        assert has_diverged(smoothed) is expected


class TestSuggestion:
    def test_a_tenth_of_the_minimum_and_the_steepest_fall(self) -> None:
        found = suggest(RATES, made_curve())
        smoothed = smooth(made_curve())
        assert found.minimum == RATES[smoothed.index(min(smoothed))]
        assert found.minimum == pytest.approx(1e-2, rel=0.3)
        assert found.learning_rate == pytest.approx(found.minimum / 10)
        assert found.steepest == pytest.approx(1e-3, rel=0.2)

    @pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
    def test_noise_moves_it_little(self, noise: float) -> None:
        for seed in range(30):
            found = suggest(RATES, made_curve(noise, seed))
            assert found.learning_rate == pytest.approx(1e-3, rel=0.4)
            assert found.steepest is not None
            assert 2e-4 < found.steepest < 5e-3

    @pytest.mark.parametrize("noise", [0.0, 1e-4, 0.1])
    def test_a_flat_curve_gives_none(self, noise: float) -> None:
        found = [suggest(RATES, flat_curve(noise, seed)) for seed in range(300)]
        given = [one for one in found if one.learning_rate is not None]
        assert len(given) <= 0.02 * len(found)  # one in a hundred is expected
        empty = next(one for one in found if one.learning_rate is None)
        assert (empty.minimum, empty.steepest) == (None, None)
        assert empty.reason.startswith("the loss did not fall: from 0.")

    def test_a_rising_curve_gives_none(self) -> None:
        assert suggest(RATES, [1.0 + 0.01 * step for step in range(STEPS)]).learning_rate is None

    @pytest.mark.parametrize("losses", [[], [0.7], [0.7, 5.0, 80.0], [math.nan] * 50])
    def test_a_curve_that_ends_at_once_gives_none(self, losses: list[float]) -> None:
        found = suggest(RATES[: len(losses)], losses)
        assert found.learning_rate is None
        assert "too few to read a rate off" in found.reason

    def test_what_follows_a_nan_is_left_out(self) -> None:
        cut = made_curve()[:90]
        for bad in (math.nan, math.inf):
            assert suggest(RATES, [*cut, bad, *([0.0] * 9)]) == suggest(RATES[:90], cut)

    def test_an_explosion_at_the_end_does_not_count(self) -> None:
        cut = made_curve()[:75]
        with_tail = suggest(RATES[:77], [*cut, 50.0, 1e30])
        assert with_tail.learning_rate == suggest(RATES[:75], cut).learning_rate

    def test_a_loss_that_never_rises_again_gets_the_steepest_rate(self) -> None:
        losses = [loss - 0.4 for loss in made_curve()[:70]] + [0.0] * 30  # learnt by heart
        found = suggest(RATES, losses)
        assert found.minimum == RATES[-1]
        assert found.learning_rate == found.steepest
        assert found.learning_rate == pytest.approx(1e-3, rel=0.2)
        assert "without rising again" in found.reason

    def test_its_size_does_not_matter(self) -> None:
        small, large = made_curve(0.02), [1000 * loss for loss in made_curve(0.02)]
        assert suggest(RATES, small).learning_rate == suggest(RATES, large).learning_rate
        assert suggest(RATES, small).steepest == suggest(RATES, large).steepest

    def test_a_short_fall_has_no_steepest_place(self) -> None:
        losses = [1.0 - 0.05 * step for step in range(12)] + [2.0] * 5
        found = suggest(RATES[:17], losses)
        assert found.minimum == RATES[11]
        assert found.steepest is None


def test_slopes_are_those_of_least_squares() -> None:
    losses = made_curve(0.1)
    found = slopes(losses, 7)
    expected = [np.polyfit(range(7), losses[i : i + 7], 1)[0] for i in range(STEPS - 6)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


class TestTraining:
    def test_losses_are_those_of_plain_adamw_steps(self) -> None:
        rates, data = rates_of(12, 1e-4, 1e-2), batches(12)
        found = find_rate(fine_tuner(), data, CPU, gradient_clip=0.5, rates=rates)
        module = fine_tuner().train()
        optimizer = make_optimizer(module.layers(), module.optimizer_config)
        expected = []
        for number, (rate, batch) in enumerate(zip(rates, data, strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = rate
            seed_step(5, number, 0)
            loss = module.training_step(batch, number)["loss"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            expected.append(loss.item())
        assert found.losses == tuple(expected)
        assert found.rates == tuple(rates)
        assert found.ending == "highest rate"

    def test_a_net_that_can_learn_gets_a_rate(self) -> None:
        rates = []
        for seed in (1, 2, 3, 4, 5):  # of the dropout, by which a curve of 48 examples is jagged
            module = fine_tuner()
            module.seed = seed
            suggestion = find_rate(module, batches(), CPU).suggestion
            assert suggestion.learning_rate is not None
            rates.append(suggestion.learning_rate)
        assert 1e-4 < statistics.median(rates) < 3e-2

    def test_it_stops_where_the_loss_explodes(self) -> None:
        found = find_rate(fine_tuner(), batches(), CPU, rates=rates_of(60, 1e-3, 1e6))
        assert found.ending == "diverged"
        assert len(found.losses) < 60
        assert has_diverged(found.smoothed)
        assert not has_diverged(found.smoothed[:-1])

    @pytest.mark.parametrize("policy", [None, "gradual", "chain"])
    @pytest.mark.parametrize(
        "regularization",
        [RegularizationConfig(), RegularizationConfig(mixout=0.5), RegularizationConfig(l2_sp=0.1)],
        ids=str,
    )
    def test_nothing_of_it_is_kept(
        self, policy: str | None, regularization: RegularizationConfig
    ) -> None:
        module = fine_tuner(policy, regularization=regularization).eval()
        module.encoder.blocks[0].train()
        first = next(module.parameters())
        first.requires_grad_(False)
        first.grad = torch.ones_like(first)
        with torch.no_grad():
            first[0, 0] = -0.0  # bits, not values, are compared
        before = traces(module)
        find_rate(module, batches(), CPU, rates=rates_of(8, 1e-3, 1e-1))
        after = traces(module)
        assert before.keys() == after.keys()
        assert all(before[name] == after[name] for name in before)

    def test_a_failure_leaves_nothing_either(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = fine_tuner("gradual")
        before = traces(module)

        def failing() -> Iterator[dict[str, Tensor]]:
            yield from batches(2)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            find_rate(module, failing(), CPU)
        assert traces(module) == before

    def test_it_repeats(self) -> None:
        module = fine_tuner("gradual")
        first = find_rate(module, batches(), CPU)
        torch.rand(7)
        assert find_rate(module, batches(), CPU) == first

    def test_it_goes_without_gradients_switched_on_outside(self) -> None:
        rates = rates_of(3)
        with torch.no_grad():
            found = find_rate(fine_tuner(), batches(), CPU, rates=rates)
        assert found == find_rate(fine_tuner(), batches(), CPU, rates=rates)

    def test_rates_of_groups_keep_their_proportions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = fine_tuner(rate_decay=2.6)
        watch = Watch(module, monkeypatch)
        find_rate(module, batches(), CPU, rates=[1e-3, 2e-3])
        largest = {  # AdamW's first step moves every number by its rate, but for decay
            name: float(moved.abs().max()) for name, moved in watch.moves(0).items()
        }
        for depth, name in enumerate(
            ["head.", "encoder.blocks.1.", "encoder.blocks.0.", "encoder.embeddings."]
        ):
            of_group = max(size for tensor, size in largest.items() if tensor.startswith(name))
            assert of_group == pytest.approx(1e-3 / 2.6**depth, rel=0.02), name

    def test_own_peaks_give_the_proportions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = fine_tuner()
        module.peak_rates = {"embeddings": 1e-5, "block_1": 2e-4, "block_2": 2e-4, "head": 4e-4}
        watch = Watch(module, monkeypatch)
        find_rate(module, batches(), CPU, rates=[1e-3, 1e-3])
        moved = watch.moves(0)
        largest = max(float(m.abs().max()) for n, m in moved.items() if ".blocks.0." in n)
        assert largest == pytest.approx(0.5e-3, rel=0.02)

    @pytest.mark.parametrize(
        ("policy", "trained"), [("gradual", ["head."]), ("all", ["head.", "encoder."])]
    )
    def test_the_first_phase_says_what_is_frozen(
        self, policy: str, trained: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = fine_tuner(policy)
        assert module.phases is not None
        module.phases.current = last = len(module.phases.rates.plan.phases) - 1  # as in mid-run
        watch = Watch(module, monkeypatch)
        find_rate(module, batches(), CPU, rates=rates_of(5, 1e-3, 1e-2))
        expected = {n for n, _ in module.named_parameters() if n.startswith(tuple(trained))}
        assert all(names == expected for names in watch.trainable)
        moved = {name for name, change in watch.moves(2).items() if change.any()}
        assert moved <= expected
        assert {name.split(".")[0] for name in moved} == {part[:-1] for part in trained}
        for modes in watch.training:
            assert modes["head"]
            assert modes["encoder.blocks.0"] is (policy == "all")
        assert module.phases.current == last

    def test_accumulated_batches_are_one_step(self) -> None:
        config = replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        data = batches(6)
        joined = [
            {name: torch.cat([a[name], b[name]]) for name in a}
            for a, b in zip(data[::2], data[1::2], strict=True)
        ]

        def curve(given: list[dict[str, Tensor]], accumulate: int) -> tuple[float, ...]:
            torch.manual_seed(0)
            head = Classification(config, HeadConfig(), 2)
            module = FineTuner(Encoder(config), head, glue_task("sst2", None))
            rates = rates_of(3, 1e-4, 1e-3)
            return find_rate(module, given, CPU, accumulate=accumulate, rates=rates).losses

        assert curve(data, 2) == pytest.approx(curve(joined, 1), rel=1e-5)

    def test_half_precision_changes_little(self) -> None:
        rates = rates_of(4, 1e-4, 1e-3)
        full = find_rate(fine_tuner(), batches(), CPU, rates=rates).losses
        half = find_rate(fine_tuner(), batches(), CPU, rates=rates, half_precision=True).losses
        assert half != full
        assert half == pytest.approx(full, abs=0.02)

    def test_a_language_model_is_tried_in_the_same_way(self) -> None:
        torch.manual_seed(0)
        module = Pretrainer(Encoder(CONFIG), seed=2)
        ids = torch.randint(5, 30, (4, 8))
        places = torch.arange(0, 32, 3)
        batch = {"input_ids": ids, "positions": places, "labels": ids.flatten()[places]}
        before = traces(module)
        found = find_rate(module, [batch], CPU)
        assert found.suggestion.learning_rate is not None
        assert traces(module) == before


class TestEndings:
    def test_few_batches_are_gone_through_again(self) -> None:
        assert len(find_rate(fine_tuner(), batches(2), CPU, rates=rates_of(7)).losses) == 7

    def test_a_generator_that_ends_ends_the_curve(self) -> None:
        found = find_rate(fine_tuner(), iter(batches(5)), CPU, accumulate=2, rates=rates_of(7))
        assert (len(found.rates), len(found.losses), found.ending) == (2, 2, "no more data")
        assert found.suggestion.learning_rate is None

    def test_no_batch_is_an_error(self) -> None:
        with pytest.raises(DataError, match="expected batches to try learning rates on"):
            find_rate(fine_tuner(), [], CPU)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("place", [0, 3])
    def test_a_loss_that_is_not_finite_ends_the_curve(
        self, bad: float, place: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = fine_tuner()
        step = module.training_step

        def spoilt(batch: Any, index: int) -> dict[str, Tensor]:
            loss = step(batch, index)["loss"]
            return {"loss": loss * bad if index == place else loss}

        monkeypatch.setattr(module, "training_step", spoilt)
        before = traces(module)
        found = find_rate(module, batches(), CPU)
        assert (len(found.losses), found.ending) == (place, "not finite")
        assert all(math.isfinite(loss) for loss in found.losses)
        assert "too few" in found.suggestion.reason
        assert traces(module) == before

    def test_a_net_that_diverges_at_once_gets_no_rate(self) -> None:
        found = find_rate(fine_tuner(), batches(), CPU, rates=rates_of(20, 10.0, 1e4))
        assert found.ending == "diverged"
        assert len(found.losses) <= 10
        assert found.suggestion.learning_rate is None


def traces(module: Any) -> dict[str, Any]:
    """All that training could change, bits of tensors included."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    found: dict[str, Any] = {name: bits(tensor) for name, tensor in tensors}
    for name, tensor in module.named_parameters():
        found[f"{name} trainable"] = tensor.requires_grad
        found[f"{name} gradient"] = None if tensor.grad is None else bits(tensor.grad)
    for name, part in module.named_modules():
        found[f"{name} training"] = part.training
    found["phase"] = None if module.phases is None else module.phases.current
    found["norm"], found["logged"] = module.gradient_norm, module.is_logged_step
    found["random"] = torch.get_rng_state().tolist()
    return found


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()
