"""Unfreezing in real runs: what is frozen, resuming at any point, several processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import jobs as runs
from finetune.checkpoints.folder import load_checkpoint
from finetune.runs.settings import FitRun, PretrainRun
from finetune.settings import fields as settings
from finetune.training.config import (
    CacheConfig,
    CheckpointConfig,
    LoaderConfig,
    RegularizationConfig,
    TrainerConfig,
)
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.finetuner import FineTuner
from finetune.training.loop.progress import LengthConfig
from finetune.training.loop.stopping import Interrupted
from finetune.training.optimizer import OptimizerConfig
from finetune.training.prefix import cache as prefix_cache
from finetune.training.schedules import ScheduleConfig
from finetune.training.unfreezing.policies import UnfreezeConfig, owned_parameters

POLICIES = {
    "all": UnfreezeConfig(),
    "head": UnfreezeConfig("head"),
    "gradual": UnfreezeConfig("gradual", phase_epochs=0.5),
    "chain": UnfreezeConfig("chain", phase_epochs=0.5),
    "lp-ft": UnfreezeConfig("lp-ft", head_epochs=1.25),
    "top:1": UnfreezeConfig("top:1"),
    "own": UnfreezeConfig(phases=["head=0.75", "block_2..head=0.5", "embeddings..head"]),
    "cleared": UnfreezeConfig("gradual", phase_epochs=0.5, optimizer_state="reset"),
    "anew": UnfreezeConfig(
        "gradual", phase_epochs=0.5, schedule_scope="phase", thaw_warmup_ratio=0.1
    ),
    "dropout": UnfreezeConfig("gradual", phase_epochs=0.5, frozen_dropout=True),
}
EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)
TRIANGLE = ScheduleConfig(schedule="slanted_triangular")


@pytest.fixture
def start(pretraining: Callable[..., PretrainRun]) -> str:
    run = pretraining("start", length=LengthConfig(max_steps=6))
    runs.pretrain(run)
    return run.out


@pytest.fixture
def tuning(fine_tuning: Callable[..., FitRun], start: str) -> Callable[..., FitRun]:
    """A fine-tuning of three epochs of 12 batches under a policy."""

    def make(out: str, policy: str, **changes: Any) -> FitRun:
        defaults: dict[str, Any] = {
            "encoder_from": start,
            "unfreezing": POLICIES[policy],
            "schedule": TRIANGLE,
            "optimizer": OptimizerConfig(learning_rate=1e-2, rate_decay=2.6),
            "trainer": TrainerConfig(
                log_every_steps=5, validate_every_steps=7, progress=False, gradient_clip=1.0
            ),
            "checkpoints": CheckpointConfig(checkpoint_every_steps=3),
        }
        return fine_tuning(out, **{**defaults, **changes})

    return make


def weights(run: FitRun, which: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(str(run.out)) / "checkpoints" / which).weights()


class Watch:
    """Looks at every tensor before and after each batch of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.phases: list[int] = []
        self.moved: list[dict[str, bool]] = []
        """Of each batch: group -> whether any of its tensors moved."""
        begin, end = FineTuner.on_train_batch_start, FineTuner.on_train_batch_end

        def before(module: FineTuner, batch: Any, index: int) -> None:
            begin(module, batch, index)
            self._kept = self._copy(module)

        def after(module: FineTuner, outputs: Any, batch: Any, index: int) -> None:
            end(module, outputs, batch, index)
            assert module.phases is not None
            assert module.phases.current is not None
            self.phases.append(module.phases.current)
            self.moved.append(
                {
                    group: any(
                        not torch.equal(old, new) for old, new in zip(tensors, now, strict=True)
                    )
                    for (group, tensors), now in zip(
                        self._kept.items(), self._copy(module).values(), strict=True
                    )
                }
            )
            self.groups = [list(phase.groups) for phase in module.phases.rates.plan.phases]

        monkeypatch.setattr(FineTuner, "on_train_batch_start", before)
        monkeypatch.setattr(FineTuner, "on_train_batch_end", after)

    @staticmethod
    def _copy(module: FineTuner) -> dict[str, list[torch.Tensor]]:
        owned = owned_parameters(module.layers())
        return {name: [p.detach().clone() for p in tensors] for name, tensors in owned.items()}


@EVERY_POLICY
def test_what_is_frozen_stays_and_what_is_trained_moves(
    name: str, tuning: Callable[..., FitRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    runs.fit(tuning("run", name))
    assert len(watch.phases) == 36
    assert watch.phases == sorted(watch.phases)
    assert set(watch.phases) == set(range(len(watch.groups)))
    rising = POLICIES[name].thaw_warmup_ratio > 0  # a group's rate is 0 in the step of its thaw
    for place, (phase, moved) in enumerate(zip(watch.phases, watch.moved, strict=True)):
        trained = [group in watch.groups[phase] for group in range(len(moved))]
        assert all(not moves or may for moves, may in zip(moved.values(), trained, strict=True))
        if not rising or (place and watch.phases[place - 1] == phase):
            assert list(moved.values()) == trained


@EVERY_POLICY
@pytest.mark.parametrize("stop", [6, 9, 18])
def test_a_run_cut_off_resumes_bit_for_bit(
    name: str, stop: int, tuning: Callable[..., FitRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuning("whole", name)
    expected = runs.fit(whole)
    cut = tuning("cut", name)
    with monkeypatch.context() as patch:
        interrupt_at(stop, patch)
        with pytest.raises(Interrupted):
            runs.fit(cut)
    found = runs.fit(dataclasses.replace(cut, resume=True))
    assert found["metrics"] == expected["metrics"]
    for which in ("last", "best"):
        ours, theirs = weights(cut, which), weights(whole, which)
        assert all(torch.equal(ours[tensor], theirs[tensor]) for tensor in theirs)


def interrupt_at(batch: int, patch: pytest.MonkeyPatch) -> None:
    """Let a signal arrive in the midst of a batch."""
    step = FineTuner.training_step
    seen = iter(range(1, 10_000))

    def interrupted(module: FineTuner, *arguments: Any) -> Any:
        if next(seen) == batch:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(module, *arguments)

    patch.setattr(FineTuner, "training_step", interrupted)


@EVERY_POLICY
@pytest.mark.parametrize(
    "changes",
    [
        {"loader": LoaderConfig(batch_size=40, micro_batches=5)},
        {"trainer": TrainerConfig(progress=False, precision="bf16-mixed")},
        {"trainer": TrainerConfig(progress=False, gradient_clip=None)},
    ],
    ids=["accumulation", "bf16", "no clipping"],
)
def test_every_policy_goes_with_every_trainer(
    name: str, changes: dict[str, Any], tuning: Callable[..., FitRun]
) -> None:
    policy = POLICIES[name]
    run = tuning("run", name, **changes)
    results = runs.fit(run)
    assert len(results["plan"]) == (1 if name in ("all", "head", "top:1") else len(results["plan"]))
    moved, begun = weights(run), load_checkpoint(run.encoder_from).weights()
    same = {n for n, tensor in begun.items() if n in moved and torch.equal(tensor, moved[n])}
    if policy.unfreeze == "head":
        assert {n for n in begun if n.startswith("encoder.")} <= same
    elif policy.unfreeze == "all":
        assert not {n for n in same if "key.bias" not in n}


def test_every_parameter_is_in_one_named_group_from_the_first_step(
    tuning: Callable[..., FitRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[tuple[str, list[int]]]] = []
    begin = FineTuner.on_train_batch_start

    def look(module: FineTuner, batch: Any, index: int) -> None:
        begin(module, batch, index)
        groups = module.trainer.optimizers[0].param_groups
        found.append([(group["name"], [id(p) for p in group["params"]]) for group in groups])
        everything = sorted(id(p) for p in module.parameters())
        assert sorted(i for group in groups for i in map(id, group["params"])) == everything

    monkeypatch.setattr(FineTuner, "on_train_batch_start", look)
    runs.fit(tuning("run", "gradual"))
    assert all(groups == found[0] for groups in found)


def test_rates_are_logged_for_each_group_and_zero_where_frozen(
    tuning: Callable[..., FitRun],
) -> None:
    run = tuning("run", "gradual", trainer=TrainerConfig(log_every_steps=1, progress=False))
    results = runs.fit(run)
    lines = (Path(str(run.out)) / "metrics.jsonl").read_text().splitlines()
    logged = [line for line in map(json.loads, lines) if "lr/head" in line]
    assert [line["frozen/boundary"] for line in logged] == [3] * 6 + [2] * 6 + [1] * 6 + [0] * 18
    for line in logged:
        boundary = line["frozen/boundary"]
        rates = [line[f"lr/{group}"] for group in ("embeddings", "block_1", "block_2", "head")]
        assert all(rate == 0 for rate in rates[:boundary])
        trained = rates[boundary:]
        assert all(b == pytest.approx(2.6 * a) for a, b in zip(trained, trained[1:], strict=False))
    assert [row["boundary"] for row in results["plan"]] == [3, 2, 1, 0]


def test_own_rates_replace_computed_ones(tuning: Callable[..., FitRun]) -> None:
    unfreezing = UnfreezeConfig(group_rates=["block_1..block_2=0.005"])
    trainer = TrainerConfig(log_every_steps=1, progress=False)
    run = tuning("run", "all", unfreezing=unfreezing, trainer=trainer)
    runs.fit(run)
    line = json.loads((Path(str(run.out)) / "metrics.jsonl").read_text().splitlines()[0])
    assert line["lr/block_1"] == line["lr/block_2"] == pytest.approx(line["lr/head"] / 2)


@pytest.mark.parametrize(
    "regularization",
    [
        RegularizationConfig(reinit_blocks=1),
        RegularizationConfig(mixout=0.5),
        RegularizationConfig(l2_sp=0.1),
        RegularizationConfig(label_smoothing=0.1),
        RegularizationConfig(r_drop=1.0),
    ],
    ids=["reinit", "mixout", "l2-sp", "smoothing", "r-drop"],
)
def test_regularization_changes_the_run_and_resumes_bit_for_bit(
    regularization: RegularizationConfig,
    tuning: Callable[..., FitRun],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, whole, cut = (
        tuning("plain", "gradual"),
        tuning("whole", "gradual", regularization=regularization),
        tuning("cut", "gradual", regularization=regularization),
    )
    runs.fit(plain)
    runs.fit(whole)
    with monkeypatch.context() as patch:
        interrupt_at(20, patch)
        with pytest.raises(Interrupted):
            runs.fit(cut)
    runs.fit(dataclasses.replace(cut, resume=True))
    ours, theirs, others = weights(cut), weights(whole), weights(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(not torch.equal(others[name], theirs[name]) for name in theirs)


def test_no_checkpointer_state_is_needed_for_the_phase(tuning: Callable[..., FitRun]) -> None:
    """What is frozen is computed from the batches behind; a state that said it could differ."""
    run = tuning("run", "gradual")
    runs.fit(run)
    state = torch.load(
        Path(str(run.out)) / "checkpoints" / "last" / "trainer.pt", weights_only=True
    )
    assert not [key for key in state if "phase" in key]
    assert Checkpointer  # the one callback that writes states


RANKS = """
import os, sys, hashlib, json
from pathlib import Path
import torch
from finetune import jobs as runs
from finetune.settings import fields as settings
from finetune.training.loop.finetuner import FineTuner
from tasks.run_settings import GlueRun
begin = FineTuner.on_train_batch_start
seen = []
def look(module, batch, index):
    state = b"".join(p.detach().numpy().tobytes() for p in module.parameters())
    before = module.phases.current
    begin(module, batch, index)
    seen.append([module.phases.current, hashlib.sha256(state).hexdigest()])
FineTuner.on_train_batch_start = look
run = settings.read(GlueRun, Path(sys.argv[1]))
runs.fit(run)
rank = os.environ.get("LOCAL_RANK", "0")
Path(run.out + "-rank" + rank + ".json").write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("name", ["gradual", "chain"])
def test_two_processes_keep_equal_weights_in_every_phase(
    name: str, tuning: Callable[..., FitRun], tmp_path: Path
) -> None:
    optimizer = OptimizerConfig(learning_rate=1e-2, rate_decay=2.6, adam_epsilon=1e-3)
    still = {"dropout": 0.0, "optimizer": optimizer, "length": LengthConfig(max_epochs=5)}
    two = tuning(
        "two",
        name,
        trainer=TrainerConfig(
            accelerator="cpu", devices=2, strategy="ddp", progress=False, gradient_clip=None
        ),
        **still,
    )
    script, config = tmp_path / "ranks.py", tmp_path / "two.yaml"
    script.write_text(RANKS)
    config.write_text(settings.dump(two))
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, str(script), str(config)],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"two-rank{rank}.json").read_text()) for rank in "01")
    assert first == second
    assert {phase for phase, _ in first} == set(range(len({phase for phase, _ in first})))
    assert len({phase for phase, _ in first}) >= 4
    alone = TrainerConfig(accelerator="cpu", progress=False, gradient_clip=None)
    one = tuning("one", name, trainer=alone, **still)
    runs.fit(one)
    ours, theirs = weights(two), weights(one)
    for tensor in theirs:
        torch.testing.assert_close(ours[tensor], theirs[tensor], atol=1e-5, rtol=0)


class TestCache:
    """The frozen part computed once, in whole runs."""

    @pytest.mark.parametrize("name", ["head", "gradual", "chain", "lp-ft", "top:1", "own"])
    def test_cached_and_uncached_runs_are_the_same_bit_for_bit(
        self, name: str, tuning: Callable[..., FitRun]
    ) -> None:
        with_cache, without = (
            tuning(f"run-{cache}", name, caching=CacheConfig(cache=cache))
            for cache in (True, False)
        )
        first, second = runs.fit(with_cache), runs.fit(without)
        assert first["metrics"] == second["metrics"]
        ours, theirs = weights(with_cache), weights(without)
        assert all(torch.equal(ours[tensor], theirs[tensor]) for tensor in theirs)
        logged = [
            [
                {key: line[key] for key in line if "loss" in key or "accuracy" in key}
                for line in map(
                    json.loads,
                    (Path(str(run.out)) / "metrics.jsonl").read_text().splitlines(),
                )
            ]
            for run in (with_cache, without)
        ]
        assert logged[0] == logged[1]

    def test_what_was_trained_and_frozen_again_is_not_read_from_the_cache(
        self, tuning: Callable[..., FitRun]
    ) -> None:
        """What was kept below the head no longer holds once block 1 was trained."""
        again = UnfreezeConfig(phases=["head=1", "block_1=1", "head"])
        with_cache, without = (
            tuning(f"run-{cache}", "head", caching=CacheConfig(cache=cache), unfreezing=again)
            for cache in (True, False)
        )
        first, second = runs.fit(with_cache), runs.fit(without)
        assert first["metrics"] == second["metrics"]
        ours, theirs = weights(with_cache), weights(without)
        assert all(torch.equal(ours[tensor], theirs[tensor]) for tensor in theirs)

    def test_seeds_and_policies_share_one_filling(
        self, tuning: Callable[..., FitRun], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled: list[int] = []
        fill = prefix_cache._fill

        def counting(encoder: Any, folder: Any, entries: Any, *rest: Any) -> None:
            filled.append(len(entries))
            fill(encoder, folder, entries, *rest)

        monkeypatch.setattr(prefix_cache, "_fill", counting)
        runs.fit(tuning("first", "gradual"))
        assert filled == [2, 2]  # depths 1 and 2, of the training and the validation set
        runs.fit(tuning("second", "gradual", seed=2))
        runs.fit(tuning("third", "lp-ft"))
        runs.fit(tuning("fourth", "head"))
        assert filled == [2, 2]

    def test_a_resumed_run_reads_the_cache_of_the_encoder_that_was_given(
        self, tuning: Callable[..., FitRun], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, cut = tuning("whole", "gradual"), tuning("cut", "gradual")
        expected = runs.fit(whole)
        with monkeypatch.context() as patch:
            interrupt_at(14, patch)
            with pytest.raises(Interrupted):
                runs.fit(cut)
        found = runs.fit(dataclasses.replace(cut, resume=True))
        assert found["metrics"] == expected["metrics"]
        ours, theirs = weights(cut), weights(whole)
        assert all(torch.equal(ours[tensor], theirs[tensor]) for tensor in theirs)

    def test_no_room_is_told_and_the_run_goes_on(self, tuning: Callable[..., FitRun]) -> None:
        plain = runs.fit(tuning("plain", "head", caching=CacheConfig(cache=False)))
        run = tuning("run", "head", caching=CacheConfig(cache_gib=0.0))
        assert runs.fit(run)["metrics"] == plain["metrics"]
