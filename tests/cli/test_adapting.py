"""ULMFiT's second stage: by itself, and as a part of a fine-tuning command."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from finetune.checkpoints.folder import Checkpoint, load_checkpoint
from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError
from finetune.jobs.adapting import _shape
from finetune.runs.settings import AdaptRun
from finetune.text.corpus.documents import read_documents
from finetune.text.corpus.sources import corpus_sources
from tests.cli.test_stopping import kill_at

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

SMALL = [
    "--no-wandb",
    "--log-every-steps",
    "2",
    "--max-length",
    "16",
    "--batch-size",
    "16",
    "--learning-rate",
    "1e-2",
]


def results_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run).weights()


def test_a_memory_is_left_behind_where_a_causal_encoder_is_turned() -> None:
    config = EncoderConfig(causal=True, position="relative", memory=8)
    start = Checkpoint(Path("gpt"), config, {}, None, ())
    turned = _shape(AdaptRun("gpt", "run", objective="mlm"), start)
    assert turned == dataclasses.replace(config, causal=False, memory=0)
    assert _shape(AdaptRun("gpt", "run", objective="clm"), start) == config


def test_an_lstm_of_two_directions_cannot_be_turned() -> None:
    start = Checkpoint(Path("run"), EncoderConfig(block="lstm"), {}, None, ())
    with pytest.raises(ConfigError, match="an LSTM that reads in both directions .* run cannot"):
        _shape(AdaptRun("run", "out", objective="clm"), start)
    assert _shape(AdaptRun("run", "out", objective="mlm"), start).block == "lstm"


def test_language_modelling_goes_on_from_the_encoder_and_its_head(
    world: World, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "run"
    words = ["adapt", "--encoder", world.pretrained, "--corpus", world.corpus, "--out", out]
    outcome = call(*words, *SMALL, "--max-steps", 4, "--validation-fraction", 0.1)
    assert outcome.status == 0, outcome.err
    before, after = weights(world.pretrained), weights(out)
    assert set(after) == set(before)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    loss = results_of(world.pretrained)["metrics"]["loss"]
    assert results_of(out)["metrics"]["loss"] < loss + 0.1  # it goes on, it does not begin anew
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = next(line for line in lines if "lr/head" in line)
    assert rates["lr/block_2"] == pytest.approx(rates["lr/head"] / 2.6)
    assert rates["lr/embeddings"] == pytest.approx(rates["lr/head"] / 2.6**3)


def test_a_task_gives_its_training_texts(world: World, tmp_path: Path, call: Call) -> None:
    out, cache = tmp_path / "run", tmp_path / "cache"
    words = ["adapt", "--encoder", world.pretrained, "--task", "glue/sst2", "--data", world.data]
    outcome = call(*words, "--out", out, *SMALL, "--max-steps", 2, "--cache-dir", cache)
    assert outcome.status == 0, outcome.err
    assert results_of(out)["data"]["corpus"] == ["glue/sst2"]
    (written,) = cache.glob("texts-*.jsonl")
    sources = corpus_sources([written])
    texts = list(read_documents(sources, text_field="text", file_is_document=False))
    lines = (world.data / "glue_data" / "SST-2" / "train.tsv").read_text().splitlines()[1:]
    assert texts == list(dict.fromkeys(line.split("\t")[0] for line in lines))


def test_a_fine_tuning_adapts_first(world: World, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "run"
    words = world.glue(out, "--adapt", "3steps", "--seeds", "1,2")
    assert call(*words).status == 0
    adapted = tmp_path / "run-adapt"
    assert results_of(adapted)["task"] == "adapt glue/sst2"
    assert results_of(out)["runs"][0]["encoder"] == str(adapted)
    # Two stages by hand give the same numbers.
    by_hand = tmp_path / "by-hand"
    assert call(*world.glue(by_hand, "--seeds", "1,2", encoder=adapted)).status == 0
    assert results_of(by_hand)["metrics"] == results_of(out)["metrics"]
    assert call(*words, "--resume").status == 0  # nothing is left to do


def test_a_run_that_is_stopped_while_it_adapts_is_resumed_like_any(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(*world.glue(whole, "--adapt", "6steps")).status == 0
    with monkeypatch.context() as patch:
        kill_at(4, patch, run="cut-adapt")
        assert call(*world.glue(cut, "--adapt", "6steps")).status == 130
    monkeypatch.chdir(tmp_path)
    assert call("glue", "sst2", "--out", "cut", "--resume").status == 0
    assert call("glue", "sst2", "--out", "cut", "--resume").status == 0  # nothing is left to do
    assert results_of(cut)["metrics"] == results_of(whole)["metrics"]
    ours, theirs = weights(cut), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_that_has_no_folder_before_it_is_adapted_is_resumed(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So earlier versions left one that was stopped."""
    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        kill_at(2, patch, run="cut-adapt")
        assert call(*world.glue(cut, "--adapt", "3steps")).status == 130
    shutil.rmtree(cut)
    assert call(*world.glue(cut, "--adapt", "3steps", "--resume")).status == 0


def test_a_run_that_was_moved_with_its_adaptation_is_resumed(
    world: World, tmp_path: Path, call: Call
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    assert call(*world.glue(before / "run", "--adapt", "3steps")).status == 0
    before.rename(after)
    outcome = call(*world.glue(after / "run", "--adapt", "3steps", "--resume"))
    assert outcome.status == 0, outcome.err


def test_adapt_alone_is_one_epoch(world: World, tmp_path: Path, call: Call) -> None:
    assert call(*world.glue(tmp_path / "run", "--adapt")).status == 0
    lines = (tmp_path / "run-adapt" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["epoch"] == pytest.approx(1.0)


def test_limit_cuts_both_stages(world: World, tmp_path: Path, call: Call) -> None:
    words = world.glue(tmp_path / "run", "--adapt", "3steps", "--limit", "20")
    outcome = call(*words, "--dry-run")
    assert f"adaptation in {tmp_path}/run-adapt: 20 texts of glue/sst2, " in outcome.err
    assert call(*words).status == 0
    (written,) = (tmp_path / "cache").glob("texts-*.jsonl")
    assert len(written.read_text().splitlines()) == 20
    assert results_of(tmp_path / "run")["data"]["train"]["examples"] == 20
    assert call(*words, "--resume").status == 0


def test_what_cannot_be_adapted_is_told(world: World, tmp_path: Path, refuses: Refuses) -> None:
    out = tmp_path / "run"
    start = ["adapt", "--encoder", world.pretrained, "--out", out]
    refuses("what to read is not said: give one of --corpus and --task", *start)
    both = ["--corpus", world.corpus, "--task", "glue/sst2"]
    refuses("what to read is not said: give one of --corpus and --task", *start, *both)
    limited = [*start, "--corpus", world.corpus, "--limit", 20]
    refuses("limit is for the texts of a --task; name a smaller --corpus, or --max-steps", *limited)
    unknown = "task 'gleu/sst2': unknown family 'gleu'; did you mean 'glue'\\?"
    refuses(unknown, *start, *SMALL, "--task", "gleu/sst2")
    refuses(
        "adapt: expected epochs as 2 or steps as 500steps, got '2.5'",
        *world.glue(out, "--adapt", "2.5"),
    )
    none = ["glue", "sst2", "--encoder", "none", "--tokenizer", world.tokenizer, "--adapt"]
    refuses(
        "adapt: an encoder of random weights has nothing to adapt; pretrain",
        *none,
        "--data",
        world.data,
        "--out",
        out,
    )
    assert not out.exists()


def test_a_dry_run_shows_both_stages_and_what_they_cost(
    world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    words = world.glue(run, "--adapt", "3steps", "--seeds", "1,2", "--unfreeze", "gradual")
    outcome = call(*words, "--max-epochs", 4, "--dry-run")
    assert outcome.status == 0, outcome.err
    cost = r"about \d+ (s|min) and \d+\.\d GiB of memory"
    stage = (
        f"first stage, adaptation in {run}-adapt: 90 texts of glue/sst2, .* 3 steps, .*; {cost}\n"
    )
    assert re.search(stage, outcome.err)
    assert re.search(f"^estimated: {cost}, for each of 2 seeds$", outcome.err, re.M)
    assert outcome.json["adaptation"]["steps"] == 3
    for stage in (outcome.json["adaptation"], outcome.json["estimate"]):
        assert 0 < stage["seconds"] < 600
        assert 0 < stage["peak_gib"] < 8
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
