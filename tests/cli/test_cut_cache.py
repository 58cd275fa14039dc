"""A file of the cache that is cut short while a run reads it: one line, and the run can go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from finetune.training.loop.checkpointing import Checkpointer

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World


def cut_at(step: int, cache: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut all files of a kind to half their size at the end of a step."""
    end = Checkpointer.on_train_batch_end

    def cutting(self: Checkpointer, trainer: Any, *rest: Any) -> None:
        end(self, trainer, *rest)
        if self.progress.step == step:
            files = list(cache.rglob(pattern))
            assert files
            for file in files:
                os.truncate(file, file.stat().st_size // 2)

    monkeypatch.setattr(Checkpointer, "on_train_batch_end", cutting)


@pytest.mark.parametrize("pattern", ["ids.bin", "word_starts.bin", "train.starts"])
def test_pretraining_ends_in_one_line_and_can_go_on(
    pattern: str, world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = tmp_path / "cache", tmp_path / "run"
    words = world.pretrain(run, "--tokenizer", world.tokenizer, "--cache-dir", cache)
    with monkeypatch.context() as patch:
        cut_at(6, cache, pattern, patch)
        outcome = call(*words)
    assert outcome.status == 2
    assert f"{pattern}: expected" in outcome.complaint
    assert "it was cut short while a run reads it; continue with --resume" in outcome.complaint
    with pytest.warns(UserWarning, match="this part of the cache is damaged; computing it again"):
        assert call(*words, "--resume").status == 0
    assert metrics_of(run) == metrics_of(world.pretrained)


def test_fine_tuning_on_cached_states_ends_in_one_line_and_can_go_on(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run, whole = tmp_path / "cache", tmp_path / "run", tmp_path / "whole"
    more = ["--unfreeze", "head", "--cache-dir", cache]
    assert call(*world.glue(whole, *more)).status == 0
    with monkeypatch.context() as patch:
        cut_at(6, cache, "*.states", patch)
        outcome = call(*world.glue(run, *more))
    assert outcome.status == 2
    assert (
        "the file was cut short while a run reads it; continue with --resume" in outcome.complaint
    )
    with pytest.warns(UserWarning, match="these hidden states are computed again"):
        assert call(*world.glue(run, *more, "--resume")).status == 0
    assert metrics_of(run) == metrics_of(whole)


def metrics_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())["metrics"]
