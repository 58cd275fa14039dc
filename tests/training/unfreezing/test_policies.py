"""Unfreezing: each policy's phases, the one rule of batches, what a phase does to the weights."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from torch import Tensor, nn

from finetune.encoder import Encoder
from finetune.errors import ConfigError
from finetune.heads import Classification, HeadConfig
from finetune.settings import fields as settings
from finetune.training.optimizer import OptimizerConfig, make_optimizer
from finetune.training.schedules import ScheduleConfig, rate_factor
from finetune.training.unfreezing.plan import Pace, Phase, Plan, exact, group_names, phase_of_batch
from finetune.training.unfreezing.plan_table import plan_rows, plan_table
from finetune.training.unfreezing.policies import (
    POLICIES,
    UnfreezeConfig,
    group_rates_with,
    make_plan,
    owned_parameters,
    reset_optimizer_state,
    set_modes,
    set_trainable,
)
from finetune.training.unfreezing.rates import RatePlan, phase_progress, thaw_warmup_factor
from tests.made.nets import tiny_config


def number(low: float, high: float) -> st.SearchStrategy[float]:
    """Training flushes denormal floats to zero, for the whole process."""
    return st.floats(low, high, allow_subnormal=False)


BLOCKS = 2
POLICY_NAMES = [*POLICIES, "top:0", "top:1", "top:2"]


def plan_of(
    unfreeze: str = "all", epochs: float | None = 10, blocks: int = BLOCKS, **more: Any
) -> Plan:
    return make_plan(UnfreezeConfig(unfreeze=unfreeze, **more), blocks, epochs)


def as_tuples(plan: Plan) -> list[tuple[int, int, float, float | None]]:
    """Lowest and highest trainable group, start, end."""
    return [(p.groups.start, p.groups.stop - 1, p.start, p.end) for p in plan.phases]


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "expected"),
        [
            ("all", [(0, 3, 0, None)]),
            ("head", [(3, 3, 0, None)]),
            ("top:0", [(3, 3, 0, None)]),
            ("top:1", [(2, 3, 0, None)]),
            ("top:2", [(1, 3, 0, None)]),
            ("gradual", [(3, 3, 0, 0.5), (2, 3, 0.5, 1), (1, 3, 1, 1.5), (0, 3, 1.5, None)]),
            (
                "chain",
                [(3, 3, 0, 0.5), (0, 0, 0.5, 1), (1, 1, 1, 1.5), (2, 2, 1.5, 2), (0, 3, 2, None)],
            ),
            ("lp-ft", [(3, 3, 0, 1.25), (0, 3, 1.25, None)]),
        ],
    )
    def test_phases_are_those_of_the_paper(self, policy: str, expected: Any) -> None:
        assert as_tuples(plan_of(policy, phase_epochs=0.5, head_epochs=1.25)) == expected

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    @pytest.mark.parametrize("blocks", [2, 6])
    def test_every_moment_has_one_phase_and_the_last_runs_to_the_end(
        self, policy: str, blocks: int
    ) -> None:
        plan = plan_of(policy, 20, blocks)
        assert plan.phases[0].start == 0
        assert plan.phases[-1].end is None
        for before, after in zip(plan.phases, plan.phases[1:], strict=False):
            assert before.end == after.start

    def test_own_phases_take_the_place_of_the_policy(self) -> None:
        texts = ["head=1", "block_5..head = 0.5", "embeddings..head=2"]
        plan = plan_of("gradual", 3.5, 6, phases=texts)
        assert as_tuples(plan) == [(7, 7, 0, 1), (5, 7, 1, 1.5), (0, 7, 1.5, 3.5)]

    def test_the_last_of_the_own_phases_may_run_to_the_end(self) -> None:
        plan = plan_of(epochs=None, phases=["block_1=0.1", "embeddings..head"])
        assert as_tuples(plan) == [(1, 1, 0, 0.1), (0, 3, 0.1, None)]

    def test_ends_of_phases_have_no_rounding(self) -> None:
        plan = plan_of("gradual", 2, 8, phase_epochs=0.1)
        assert [phase.start for phase in plan.phases] == [n / 10 for n in range(10)]

    def test_under_the_clock_any_policy_has_a_plan(self) -> None:
        for policy in POLICY_NAMES:
            assert plan_of(policy, None).phases[-1].end is None


def phase_at(plan: Plan, epoch: float) -> int:
    """Index of the phase after so many epochs, by its definition."""
    return max(n for n, phase in enumerate(plan.phases) if exact(phase.start) <= exact(epoch))


class TestPlan:
    def test_it_tells_phase_groups_and_boundary_at_any_epoch(self) -> None:
        plan = plan_of("gradual")
        assert [phase_at(plan, e) for e in (0, 0.99, 1, 2.5, 3, 9, 99)] == [0, 0, 1, 2, 3, 3, 3]
        assert [phase.boundary for phase in plan.phases] == [3, 2, 1, 0]
        assert plan.phases[1].groups == range(2, 4)

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [("all", []), ("head", [3]), ("lp-ft", [3]), ("gradual", [1, 2, 3]), ("chain", [1, 2, 3])],
    )
    def test_boundaries_are_those_with_a_frozen_prefix(
        self, policy: str, expected: list[int]
    ) -> None:
        assert plan_of(policy).boundaries() == expected

    def test_thaws_are_known_beforehand(self) -> None:
        gradual, chain = plan_of("gradual"), plan_of("chain")
        assert [gradual.thawed_in(2, phase) for phase in range(4)] == [None, 1, 1, 1]
        assert [chain.thawed_in(0, phase) for phase in range(5)] == [None, 1, None, None, 4]
        assert [chain.thawed_in(2, phase) for phase in range(5)] == [None, None, None, 3, 3]

    @pytest.mark.parametrize(
        ("phases", "message"),
        [
            ([], "expected at least one phase, got none"),
            ([Phase(range(0, 4), 0, 1), Phase(range(0, 4), 2, None)], "phase 2: .*is a gap"),
            ([Phase(range(0, 4), 0, 2), Phase(range(0, 4), 1, None)], "phase 2: .*is an overlap"),
            ([Phase(range(0, 4), 1, None)], "phase 1: expected it to begin after 0 epochs"),
            ([Phase(range(0, 5), 0, None)], r"from 0 \(embeddings\) to 3 \(head\), got 0 to 4"),
            ([Phase(range(2, 2), 0, None)], r"a row of groups without a gap, got \[\]"),
            ([Phase(range(0, 4, 2), 0, None)], r"without a gap, got \[0, 2\]"),
            ([Phase(range(0, 4), 0, 0)], "expected more than 0 epochs, got 0"),
            ([Phase(range(0, 4), 0, None), Phase(range(0, 4), 1, None)], "only the last phase may"),
        ],
    )
    def test_what_is_no_plan_is_refused(self, phases: list[Phase], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Plan(tuple(phases), 4)


fractions = st.fractions(min_value="1/50", max_value=4, max_denominator=50)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    lengths = draw(st.lists(fractions, max_size=6))
    starts = [sum(lengths[:n], start=exact(0)) for n in range(len(lengths) + 1)]
    ends = [*map(float, starts[1:]), None]
    return Plan(tuple(Phase(range(4), float(s), e) for s, e in zip(starts, ends, strict=True)), 4)


class TestBatches:
    @settings_of_hypothesis(max_examples=40)
    @given(plans(), st.integers(1, 60))
    def test_the_phase_never_goes_back(self, plan: Plan, per_epoch: int) -> None:
        batches = range(int(plan.phases[-1].start * per_epoch) + 2 * per_epoch)
        phases = [phase_of_batch(plan, b, per_epoch) for b in batches]
        assert phases == sorted(phases)
        assert phases[-1] == len(plan.phases) - 1

    @settings_of_hypothesis(max_examples=40)
    @given(plans(), st.integers(1, 60))
    def test_a_phase_begins_with_the_batch_at_its_floor(self, plan: Plan, per_epoch: int) -> None:
        for number, phase in enumerate(plan.phases):
            first = math.floor(exact(phase.start) * per_epoch)
            assert phase_of_batch(plan, first, per_epoch) >= number
            assert first == 0 or phase_of_batch(plan, first - 1, per_epoch) < number

    @settings_of_hypothesis(max_examples=15)
    @given(plans(), st.integers(1, 60))
    def test_it_agrees_with_the_epoch_wherever_batches_meet_epochs(
        self, plan: Plan, per_epoch: int
    ) -> None:
        # A batch belongs to the phase in which it ends, if that is where the phase changes.
        for batch in range(3 * per_epoch):
            at_start = phase_at(plan, batch / per_epoch)
            assert phase_of_batch(plan, batch, per_epoch) >= at_start
            assert phase_of_batch(plan, batch, per_epoch) <= phase_at(plan, (batch + 1) / per_epoch)

    @pytest.mark.parametrize(
        ("epochs", "per_epoch", "first"), [(0.57, 100, 57), (1 / 3, 300, 100), (0.29, 100, 29)]
    )
    def test_floating_point_does_not_move_a_boundary(
        self, epochs: float, per_epoch: int, first: int
    ) -> None:
        plan = plan_of("lp-ft", head_epochs=epochs)
        assert int(epochs * per_epoch) != first or epochs == 1 / 3
        assert phase_of_batch(plan, first - 1, per_epoch) == 0
        assert phase_of_batch(plan, first, per_epoch) == 1

    def test_a_phase_begins_once(self) -> None:
        plan = plan_of("lp-ft", head_epochs=1.5)  # batch 4 of 3 an epoch
        pace = Pace(3, total_steps=9)
        assert pace.epochs == 3.0
        assert pace.steps(plan) == [(0, 4), (4, 9)]
        assert [pace.begins_phase(plan, b) for b in (0, 3, 4, 5)] == [False, False, True, False]

    @settings_of_hypothesis(max_examples=40)
    @given(plans(), st.integers(1, 60))
    def test_steps_and_batches_tell_the_same_phase(self, plan: Plan, per_epoch: int) -> None:
        pace = Pace(per_epoch)
        starts = [begin for begin, _ in pace.steps(plan)]
        for batch in range(int(plan.phases[-1].start * per_epoch) + per_epoch):
            by_step = max(n for n, begin in enumerate(starts) if begin <= batch)
            assert pace.phase_of_batch(plan, batch) == by_step

    def test_phases_without_a_step_are_refused(self) -> None:
        with pytest.raises(
            ConfigError, match="phase 1 is shorter than one step: an epoch has 5; .*0.2 epochs"
        ):
            Pace(5, total_steps=50).check(plan_of("gradual", phase_epochs=0.1))
        with pytest.raises(
            ConfigError, match="phase 4 of 4 would begin after step 15, .*has 15 steps"
        ):
            Pace(5, total_steps=15).check(plan_of("gradual"))
        Pace(5, total_steps=16).check(plan_of("gradual"))
        Pace(5).check(plan_of("gradual", None))


class TestErrors:
    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ({"unfreeze": "gradul"}, "unfreeze must .*, got 'gradul'; did you mean 'gradual'"),
            ({"unfreeze": "xyz"}, "unfreeze must be one of all, .*, top:N, got 'xyz'"),
            ({"unfreeze": "top"}, "unfreeze must be top:N with a whole number N, got 'top'"),
            ({"unfreeze": "top:-1"}, "unfreeze must be top:N with a whole number N, got 'top:-1'"),
            ({"phase_epochs": 0.0}, "phase_epochs must be .*(above 0|from 1).*, got 0"),
            ({"head_epochs": -1.0}, "head_epochs must be .*(above 0|from 1).*, got -1"),
            (
                {"thaw_warmup_ratio": 1.0},
                r"thaw_warmup_ratio must be a number from 0 to below 1.*, got 1",
            ),
            ({"phases": []}, "phases: expected at least one as 'head=1', got none"),
        ],
    )
    def test_settings_are_checked_at_once(self, setting: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            UnfreezeConfig(**setting)

    @pytest.mark.parametrize(
        ("phases", "message"),
        [
            (["heat=1"], "phases, number 1: unknown group 'heat'; did you mean 'head'"),
            (["head=1", "block_7..head"], "number 2: 'block_7' is out of range, the encoder has 6"),
            (["block_0"], "'block_0' is out of range, .*choose block_1 to block_6"),
            (["head..block_5"], "expected the lowest group first, 'block_5..head', got"),
            (["head=x"], "expected GROUP=EPOCHS with a positive number, got 'head=x'"),
            (["head=0"], "with a positive number, got 'head=0'"),
            (["head=nan"], "with a positive number, got 'head=nan'"),
            (["head", "embeddings..head"], "number 1: expected GROUP=EPOCHS .*got 'head'"),
            (["head=3", "embeddings..head=3"], "found|need 6 epochs, got 5; set max_epochs to 6"),
            (
                ["head=3", "block_6..head=2.5"],
                "set max_epochs to 6 and leave the epochs of the last",
            ),
            (
                ["head=5", "embeddings..head"],
                "2 phases of own phases need more than 5 epochs, got 5",
            ),
            (
                ["head=1", "embeddings..head=1"],
                "expected them to cover the run, got 2 of 5 epochs",
            ),
        ],
    )
    def test_a_bad_list_of_phases_is_one_clear_line(self, phases: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            make_plan(UnfreezeConfig(phases=phases), 6, 5)
        assert "\n" not in str(caught.value)

    def test_top_n_has_as_many_blocks_as_there_are(self) -> None:
        with pytest.raises(ConfigError, match="expected top:0 to top:2, .*got 'top:3'"):
            plan_of("top:3")

    @pytest.mark.parametrize(
        ("setting", "epochs", "message"),
        [
            (
                {"unfreeze": "gradual"},
                4,
                "the 8 phases of gradual need more than 7 epochs, got 4; set max_epochs to 8, "
                "or phase_epochs to 0.5",
            ),
            ({"unfreeze": "gradual"}, 7, "need more than 7 epochs, got 7"),
            ({"unfreeze": "chain"}, 3, "the 9 phases of chain need more than 8.*to 0.33"),
            ({"unfreeze": "lp-ft", "head_epochs": 3.0}, 2, "to 4, or head_epochs to 1"),
            ({"unfreeze": "chain"}, 0.01, "or phase_epochs to 0.0011"),
        ],
    )
    def test_too_few_epochs_are_told_how_many_are_needed(
        self, setting: dict[str, Any], epochs: float, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            make_plan(UnfreezeConfig(**setting), 6, epochs)

    @pytest.mark.parametrize("policy", ["gradual", "chain", "lp-ft"])
    @pytest.mark.parametrize("epochs", [0.3, 1.0, 2.0])
    def test_the_shorter_phases_that_are_advised_do(self, policy: str, epochs: float) -> None:
        with pytest.raises(ConfigError) as caught:
            make_plan(UnfreezeConfig(unfreeze=policy, head_epochs=2.0), 6, epochs)
        name, _, value = str(caught.value).rpartition("or ")[2].partition(" to ")
        make_plan(UnfreezeConfig(unfreeze=policy, **{name: float(value)}), 6, epochs)

    def test_what_needs_the_length_of_the_run_says_so_under_the_clock(self) -> None:
        with pytest.raises(
            ConfigError, match="schedule_scope: phase needs a run whose length in steps"
        ):
            plan_of("gradual", None, schedule_scope="phase")
        with pytest.raises(ConfigError, match="thaw_warmup_ratio needs a run whose length"):
            plan_of("lp-ft", None, thaw_warmup_ratio=0.1)
        with pytest.raises(ConfigError, match="runs until the time is over; leave its epochs out"):
            plan_of(epochs=None, phases=["head=1", "embeddings..head=1"])
        assert len(plan_of("all", None, schedule_scope="phase", thaw_warmup_ratio=0.1).phases) == 1


class TestRates:
    def test_discriminative_rates_can_be_replaced_group_by_group(self) -> None:
        names = group_names(2)
        plain = group_rates_with(names, 1.0, 2.0)
        assert plain == {"embeddings": 0.125, "block_1": 0.25, "block_2": 0.5, "head": 1.0}
        changed = group_rates_with(names, 1.0, 2.0, ["embeddings..block_2=3", "block_1=7e-1"])
        assert changed == {"embeddings": 3.0, "block_1": 0.7, "block_2": 3.0, "head": 1.0}
        with pytest.raises(ConfigError, match="group_rates: unknown group 'haed'; did you mean"):
            group_rates_with(names, 1.0, 2.0, ["haed=1"])
        with pytest.raises(ConfigError, match="expected GROUP=RATE with a positive number, got"):
            group_rates_with(names, 1.0, 2.0, ["head=-1"])

    def test_a_span_of_the_run_is_the_plain_schedule(self) -> None:
        plan, schedule = plan_of("gradual", 4), ScheduleConfig("slanted_triangular")
        rates = RatePlan(plan, Pace(10, total_steps=40), schedule)
        for step in range(40):
            groups = plan.phases[step // 10].groups
            expected = [rate_factor(step / 40, schedule) * (g in groups) for g in range(4)]
            assert rates.factors(step // 10, step) == expected

    def test_a_span_of_the_phase_begins_anew_in_each(self) -> None:
        plan, schedule = plan_of("lp-ft", 4), ScheduleConfig("slanted_triangular")
        rates = RatePlan(plan, Pace(10, total_steps=40), schedule, schedule_scope="phase")
        head = [rates.factors(int(step >= 10), step)[3] for step in range(40)]
        assert head[:10] == [rate_factor(n / 10, schedule) for n in range(10)]
        assert head[10:] == [rate_factor(n / 30, schedule) for n in range(30)]
        assert head[0] == head[10] == 1 / 32

    def test_a_plan_of_one_phase_has_one_span(self) -> None:
        run, phase = (
            RatePlan(plan_of(), Pace(10, total_steps=40), ScheduleConfig(), span)  # type: ignore[arg-type]
            for span in ("run", "phase")
        )
        assert [run.factors(0, s) for s in range(40)] == [phase.factors(0, s) for s in range(40)]

    def test_a_thawed_group_warms_up_and_the_others_do_not(self) -> None:
        plan, schedule = plan_of("gradual", 4), ScheduleConfig("constant", warmup_ratio=0)
        rates = RatePlan(plan, Pace(10, total_steps=40), schedule, thaw_warmup_ratio=0.1)
        block_2 = [rates.factors(1, step)[2] for step in range(10, 20)]
        assert block_2 == pytest.approx([0, 0.25, 0.5, 0.75, *[1] * 6])
        assert {rates.factors(1, step)[3] for step in range(10, 20)} == {1.0}
        assert rates.factors(1, 12)[0] == 0.0  # still frozen

    def test_each_thaw_of_chain_thaw_warms_up(self) -> None:
        plan, schedule = plan_of("chain", 5), ScheduleConfig("constant", warmup_ratio=0)
        rates = RatePlan(plan, Pace(10, total_steps=50), schedule, thaw_warmup_ratio=0.04)
        assert rates.factors(1, 11) == pytest.approx([0.5, 0, 0, 0])
        assert rates.factors(4, 41) == pytest.approx(
            [0.5, 0.5, 1, 0.5]
        )  # block_2 comes straight from its phase

    @given(number(-1, 2), number(0, 1), number(0, 0.99))
    def test_factors_stay_between_zero_and_one(self, done: float, thaw: float, warm: float) -> None:
        assert 0 <= thaw_warmup_factor(done, thaw, warm) <= 1
        assert 0 <= phase_progress(int(done * 100), 10, 20) <= 1

    def test_the_clock_gives_the_fraction_where_steps_cannot(self) -> None:
        rates = RatePlan(plan_of("lp-ft", None), Pace(10), ScheduleConfig("linear"))
        assert rates.factors(1, 999, 0.55) == pytest.approx([0.5] * 4)
        with pytest.raises(ValueError, match="the fraction of the run must be given"):
            rates.factors(1, 999)


class TestTable:
    def rows(self, policy: str = "gradual", **more: Any) -> list[dict[str, Any]]:
        rates = RatePlan(plan_of(policy, 4), Pace(5, 20), ScheduleConfig(), **more)
        peaks = group_rates_with(rates.plan.names, 1e-3, 2.0)
        return plan_rows(rates, peaks, {name: 1000 for name in rates.plan.names})

    def test_rows_are_the_plan(self) -> None:
        rows = self.rows()
        assert rows[1] | {"rates": None} == {
            "phase": 2,
            "epochs": [1, 2],
            "steps": [5, 10],
            "groups": ["block_2", "head"],
            "parameters": 2000,
            "boundary": 2,
            "rates": None,
        }
        assert rows[3]["epochs"] == [3, 4.0]
        assert rows[3]["steps"] == [15, 20]

    @pytest.mark.parametrize("policy", POLICY_NAMES)
    @pytest.mark.parametrize("span", ["run", "phase"])
    @pytest.mark.parametrize("rewarm", [0.0, 0.15])
    def test_rates_are_those_of_the_steps(self, policy: str, span: Any, rewarm: float) -> None:
        plan = plan_of(policy, 4, phase_epochs=0.5)
        rates = RatePlan(plan, Pace(10, 40), ScheduleConfig(), span, rewarm)
        peaks = group_rates_with(plan.names, 1e-3, 2.6)
        for index, row in enumerate(plan_rows(rates, peaks, dict.fromkeys(plan.names, 1))):
            curves = [rates.factors(index, step) for step in range(*row["steps"])]
            for name, points in row["rates"].items():
                curve = [factors[plan.names.index(name)] * peaks[name] for factors in curves]
                assert points == {"start": curve[0], "peak": max(curve), "end": curve[-1]}

    def test_the_table_is_what_is_expected(self) -> None:
        assert plan_table(self.rows("lp-ft"), "lp-ft", {3: "0.31 GiB"}) == (
            "unfreezing: lp-ft, 2 phases\n"
            "phase  epochs  steps  trainable         parameters  boundary  cache\n"
            "    1  0-1         5  head                   1,000         3  0.31 GiB\n"
            "    2  1-4        15  embeddings..head       4,000         0  -\n"
            "\n"
            "phase  group       rate at start      peak       end\n"
            "    1  head             0.00e+00  1.00e-03  8.89e-04\n"
            "    2  head             8.33e-04  8.33e-04  5.56e-05\n"
            "       block_2          4.17e-04  4.17e-04  2.78e-05\n"
            "       block_1          2.08e-04  2.08e-04  1.39e-05\n"
            "       embeddings       1.04e-04  1.04e-04  6.94e-06"
        )

    @pytest.mark.parametrize("policy", [*POLICIES, "top:12"])
    @pytest.mark.parametrize("minutes", [False, True])
    def test_no_line_is_wider_than_a_terminal(self, policy: str, minutes: bool) -> None:
        plan = plan_of(policy, None if minutes else 200, 24, phase_epochs=1.125)
        pace = Pace(200, None if minutes else 40_000)
        rates = RatePlan(plan, pace, ScheduleConfig())
        rows = plan_rows(
            rates, group_rates_with(plan.names, 1e-3, 2.6), dict.fromkeys(plan.names, 9_999_999)
        )
        table = plan_table(rows, policy, {1: "10.31 GiB"})
        assert max(map(len, table.splitlines())) <= 80

    def test_under_the_clock_the_rates_of_several_phases_are_not_known(self) -> None:
        plan = plan_of("lp-ft", None)
        rates = RatePlan(plan, Pace(10), ScheduleConfig())
        rows = plan_rows(rates, group_rates_with(plan.names, 1e-3, 1), dict.fromkeys(plan.names, 1))
        assert rows[0]["rates"] == {"head": None}
        assert rows[1]["epochs"] == [1, None]
        assert "1 on     rest  embeddings..head" in plan_table(rows, "lp-ft")
        assert "by the clock" in plan_table(rows, "lp-ft")

    def test_groups_with_one_rate_share_a_line(self) -> None:
        plan = plan_of("all", None)
        rates = RatePlan(plan, Pace(10), ScheduleConfig("constant", warmup_ratio=0))
        rows = plan_rows(rates, group_rates_with(plan.names, 1e-3, 1), dict.fromkeys(plan.names, 1))
        last = plan_table(rows, "all").splitlines()[-1].split()
        assert last == ["1", "embeddings..head", "1.00e-03", "1.00e-03", "1.00e-03"]


class Model(nn.Module):
    """An encoder with BERT's dropout and ULMFiT's head, and its optimizer."""

    def __init__(self, **optimizer: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = tiny_config(
            vocab_size=30, num_hidden_layers=BLOCKS, max_position_embeddings=8, type_vocab_size=0
        )
        self.encoder = Encoder(config)
        self.head = Classification(config, HeadConfig(pooling="concat"), 3)
        self.layers = {**self.encoder.layer_groups(), "head": [self.head]}
        settings = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, **optimizer)
        self.optimizer = make_optimizer(self.layers, settings)

    def train_batch(self, number: int, plan: Plan, config: UnfreezeConfig) -> None:
        """As a training loop would; six batches an epoch."""
        pace = Pace(6)
        groups = plan.phases[pace.phase_of_batch(plan, number)].groups
        if config.optimizer_state == "reset" and pace.begins_phase(plan, number):
            reset_optimizer_state(self.optimizer)
        set_trainable(self.layers, groups)
        self.train()
        set_modes(self.layers, groups, frozen_dropout=config.frozen_dropout)
        torch.manual_seed(number)
        batch = {"input_ids": torch.randint(1, 30, (4, 8))}
        labels = torch.randint(0, 3, (4,))
        self.head.loss(self.head(self.encoder(batch).last_hidden_state), labels).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def group_states(self) -> list[dict[str, Tensor]]:
        """Copies of weights and statistics, by group."""
        return [
            {
                f"{number}.{name}": tensor.clone()
                for number, module in enumerate(modules)
                for name, tensor in module.state_dict().items()
            }
            for modules in self.layers.values()
        ]


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[bool]:
    return {not torch.equal(before[name], after[name]) for name in before}


POLICIES_TRAINED = [{"unfreeze": name} for name in POLICY_NAMES] + [
    {"phases": ["embeddings..block_1=0.5", "block_2=0.5", "head=0.5", "embeddings..head"]}
]


@pytest.mark.parametrize("policy", POLICIES_TRAINED, ids=str)
class TestWeights:
    @pytest.mark.parametrize("frozen_dropout", [False, True])
    def test_frozen_groups_keep_every_bit_and_the_others_move(
        self, policy: dict[str, Any], frozen_dropout: bool
    ) -> None:
        config = UnfreezeConfig(**policy, phase_epochs=0.5, frozen_dropout=frozen_dropout)
        plan, model = make_plan(config, BLOCKS, 3), Model()
        for number in range(18):
            before = model.group_states()
            model.train_batch(number, plan, config)
            groups = plan.phases[phase_of_batch(plan, number, 6)].groups
            for group, (old, new) in enumerate(zip(before, model.group_states(), strict=True)):
                # Of a trainable group each tensor moves: biases of keys too, if by rounding errors.
                assert (True in moved(old, new)) == (group in groups), (number, group)
                assert group in groups or moved(old, new) == {False}


class TestResuming:
    @pytest.mark.parametrize("policy", ["all", "gradual", "chain"])
    @pytest.mark.parametrize("optimizer_state", ["keep", "reset"])
    def test_a_run_taken_up_at_any_batch_ends_bit_equal(
        self, policy: str, optimizer_state: Any
    ) -> None:
        config = UnfreezeConfig(policy, phase_epochs=0.5, optimizer_state=optimizer_state)
        plan, model = make_plan(config, BLOCKS, 3), Model()
        saved = []
        for number in range(11):
            saved.append((model.state_dict(), model.optimizer.state_dict()))
            saved[-1] = torch.load(_stored(saved[-1]), weights_only=True)
            model.train_batch(number, plan, config)
        for stopped in (2, 3, 4, 9):
            again = Model()
            again.load_state_dict(saved[stopped][0])
            again.optimizer.load_state_dict(saved[stopped][1])
            for number in range(stopped, 11):
                again.train_batch(number, plan, config)
            for old, new in zip(model.group_states(), again.group_states(), strict=True):
                assert moved(old, new) == {False}


def _stored(state: Any) -> Any:
    import io

    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return stream


class TestApplying:
    def test_after_a_phase_of_all_groups_each_tensor_has_moved(self) -> None:
        config, model = UnfreezeConfig(), Model()
        before = model.group_states()
        for number in range(6):
            model.train_batch(number, make_plan(config, BLOCKS, 3), config)
        for old, new in zip(before, model.group_states(), strict=True):
            still = {name for name in old if torch.equal(old[name], new[name])}
            assert still <= {"0.attention.key.bias"}  # softmax does not see it

    def test_frozen_modules_are_in_eval_mode_and_the_others_are_not(self) -> None:
        model = Model()
        set_modes(model.layers, range(2, 4))
        modes = {
            name: {part.training for module in modules for part in module.modules()}
            for name, modules in model.layers.items()
        }
        assert modes == {
            "embeddings": {False},
            "block_1": {False},
            "block_2": {True},
            "head": {True},
        }

    def test_with_frozen_dropout_only_statistics_stand_still(self) -> None:
        model = Model()
        set_modes(model.layers, range(0, 1), frozen_dropout=True)
        standing = {type(part).__name__ for part in model.modules() if not part.training}
        assert standing == {"BatchNorm"}

    def test_a_shared_tensor_belongs_to_the_lower_group(self) -> None:
        low, high = nn.Linear(3, 3), nn.Linear(3, 3)
        high.weight = low.weight
        layers = {"embeddings": [low], "head": [high]}
        assert {n: len(ps) for n, ps in owned_parameters(layers).items()} == {
            "embeddings": 2,
            "head": 1,
        }
        set_trainable(layers, range(1, 2))
        assert (low.weight.requires_grad, high.bias.requires_grad) == (False, True)

    def test_what_is_frozen_keeps_no_gradient(self) -> None:
        model = Model()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        set_trainable(model.layers, range(3, 4))
        assert all((p.grad is None) != p.requires_grad for p in model.parameters())

    def test_cleared_moments_begin_anew(self) -> None:
        model, config = Model(), UnfreezeConfig()
        plan = make_plan(config, BLOCKS, 3)
        for number in range(3):
            model.train_batch(number, plan, config)
        reset_optimizer_state(model.optimizer)
        model.train_batch(3, plan, config)
        assert {float(state["step"]) for state in model.optimizer.state.values()} == {1.0}


@dataclasses.dataclass
class Run:
    """A run with the section."""

    unfreezing: UnfreezeConfig = dataclasses.field(default_factory=UnfreezeConfig)


def read(*words: str, yaml: Path | None = None) -> UnfreezeConfig:
    parser = argparse.ArgumentParser()
    settings.add_flags(parser, Run)
    return settings.read(Run, yaml, settings.given(Run, parser.parse_args(words))).unfreezing


@pytest.fixture
def yaml(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "run.yaml"
    file.write_text(
        "unfreezing:\n  phases: [head=1, block_1..head=0.5, embeddings..head]\n"
        "  schedule_scope: phase\n  thaw_warmup_ratio: 0.05\n  optimizer_state: reset\n"
        "  group_rates:\n  - head=1e-3\n"
    )
    return file


class TestSettings:
    def test_flags_give_every_setting(self) -> None:
        words = (
            "--unfreeze chain --phase-epochs 0.5 --schedule-scope phase --thaw-warmup-ratio 0.1 "
        )
        words += "--optimizer-state reset --frozen-dropout --group-rates head=1 block_1=2"
        found = read(*words.split())
        assert found == UnfreezeConfig(
            "chain", 0.5, 1.0, None, "phase", 0.1, "reset", True, ["head=1", "block_1=2"]
        )
        assert read("--phases", "head=1", "embeddings..head").phases == [
            "head=1",
            "embeddings..head",
        ]
        assert read() == UnfreezeConfig()

    def test_yaml_gives_them_too_and_survives_writing(self, yaml: Path, tmp_path: Path) -> None:
        found = read(yaml=yaml)
        assert found.phases == ["head=1", "block_1..head=0.5", "embeddings..head"]
        assert (found.schedule_scope, found.optimizer_state, found.group_rates) == (
            "phase",
            "reset",
            ["head=1e-3"],
        )
        again = tmp_path / "again.yaml"
        again.write_text(settings.dump(Run(found)))
        assert read(yaml=again) == found

    def test_a_policy_on_the_command_line_displaces_the_phases_of_a_file(self, yaml: Path) -> None:
        found = read("--unfreeze", "head", yaml=yaml)
        assert (found.unfreeze, found.phases, found.schedule_scope) == ("head", None, "phase")

    def test_a_wrong_word_is_named(self) -> None:
        with pytest.raises(
            ConfigError, match="--schedule-scope: expected one of run, phase, got 'runs'"
        ):
            read("--schedule-scope", "runs")
        with pytest.raises(ConfigError, match="unfreeze must .* did you mean 'chain'"):
            read("--unfreeze", "chian")
