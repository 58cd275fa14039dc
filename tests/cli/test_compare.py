"""`finetune compare` on runs of one and of several seeds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.jobs import caching
from finetune.training.prefix import cache as prefix_cache
from finetune.training.prefix.states import weight_keys

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def test_two_recipes_are_compared_with_error_bars(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    seeds = ["--seeds", "1,2,3", "--max-epochs", "1"]
    a, b = tmp_path / "a", tmp_path / "b"
    assert call(*world.glue(a, *seeds)).status == 0
    assert call(*world.glue(b, *seeds, "--learning-rate", "1e-4")).status == 0
    outcome = call("compare", a, b)
    assert outcome.status == 0
    assert "accuracy" in outcome.out
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    (line,) = (line for line in outcome.out.splitlines() if "learning_rate" in line)
    assert line.split() == ["optimizer.learning_rate", "0.01", "0.0001"]
    found = call("compare", a, b, "--metric", "accuracy", "--json").json
    assert found["settings"] == {"optimizer.learning_rate": [0.01, 1e-4]}
    assert found["verdict"]
    script = (
        "import sys; from tasks.__main__ import main; main(sys.argv[1:]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pytorch_lightning')))"
    )
    words = ["compare", a, b, "--metric", "accuracy"]
    subprocess.run([sys.executable, "-c", script, *words], check=True)  # it does not wait for them
    refuses(".*unknown metric 'acuracy'.*|.*acuracy.*", "compare", a, b, "--metric", "acuracy")
    refuses(".*", "compare", a, tmp_path / "none")


def test_answers_of_seeds_that_were_made_one_by_one_are_scored_anew(
    world: World, tmp_path: Path, call: Call
) -> None:
    folder = tmp_path / "data" / "glue_data" / "CoLA"
    folder.mkdir(parents=True)
    lines = [f"x\t{n % 2}\t\tthe {'cat' if n % 2 else 'dog'} sees a tree" for n in range(12)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    start = ["glue", "cola", "--config", world.glue_config, "--data", tmp_path / "data"]
    start += ["--encoder", world.pretrained, "--max-epochs", "1"]
    for name in "ab":
        out = tmp_path / name / "one"  # the folder above has no settings of its own
        assert call(*start, "--seed", "abc".index(name), "--out", out).status == 0
    other = tmp_path / "a" / "another"  # has not ended, so it is not compared
    other.mkdir()
    (other / "config.yaml").write_text("corpus: [text]\n")
    found = call("compare", tmp_path / "a", tmp_path / "b", "--json").json
    (difference,) = found["differences"]
    assert difference["metric"] == "matthews_correlation"
    assert difference["bootstrap"]["resamples"] == 10_000
    assert not any("no test of" in note for note in found["notes"])


def test_a_plan_is_shown_and_nothing_is_written(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    out = tmp_path / "run"
    words = [*world.glue(out, "--unfreeze", "gradual", "--max-epochs", "5"), "--dry-run"]
    outcome = call(*words)
    assert outcome.status == 0
    assert not out.exists()
    assert "unfreezing: gradual, 4 phases" in outcome.err
    plan = json.loads(outcome.out)["plan"]
    assert [row["groups"][0] for row in plan] == ["head", "block_2", "block_1", "embeddings"]
    short = world.glue(out, "--unfreeze", "gradual", "--max-epochs", "2")
    refuses("the 4 phases of gradual need more than 3 epochs, got 2; .*", *short)
    refuses(
        ".*unfreeze must be one of .*, got 'gradul'; did you mean 'gradual'\\?",
        *world.glue(out, "--unfreeze", "gradul"),
    )
    refuses("mixout must be a number from 0 to below 1, got 1.0", *world.glue(out, "--mixout", "1"))


def test_the_cache_is_listed_and_cleared(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, hashed = ["--cache-dir", tmp_path / "cache"], []
    for module in (caching, prefix_cache):
        monkeypatch.setattr(
            module, "weight_keys", lambda *of: hashed.append(of) or weight_keys(*of)
        )
    words = world.glue(tmp_path / "run", "--unfreeze", "head", *cache)
    assert call(*words).status == 0
    assert len(hashed) == 1  # for two sets
    listed = call("cache", "list", *cache)
    assert listed.status == 0
    assert re.search(r"glue/sst2 train +pretrained +2 +fp32 +90 +0.000", listed.out)
    assert len(listed.out.splitlines()) == 1 + 2 + 2
    assert call("cache", "clear", *cache).out.startswith("0.000 GiB freed")
    assert "0 entries" in call("cache", "list", *cache).out
    assert "0 entries" in call("cache", "list", "--cache-dir", tmp_path / "none").out


def test_a_learning_rate_is_looked_for_and_nothing_is_trained(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    out = tmp_path / "run"
    outcome = call(*world.glue(out, "--find-lr"))
    assert outcome.status == 0
    curve = json.loads((out / "rate_curve.json").read_text())
    assert len(curve["steps" if "steps" in curve else "curve"]) > 10
    assert not (out / "checkpoints").exists()
    assert call(*world.glue(out)).status == 0  # the run itself can start there
    assert (out / "rate_curve.json").is_file()
    pretraining = tmp_path / "pretraining"
    assert call(*world.pretrain(pretraining, "--find-lr")).status == 0
    assert (pretraining / "rate_curve.json").is_file()
    both = world.glue(tmp_path / "other", "--find-lr", "--adapt", "1")
    refuses("--find-lr tries the rates of one stage: .*", *both)


def test_a_plan_that_does_not_fit_costs_neither_a_run_nor_a_stage(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    out = tmp_path / "run"
    assert call(*world.glue(out, "--seeds", "1,2", "--max-epochs", "1")).status == 0
    kept = (out / "results.json").read_bytes()
    short = ["--unfreeze", "gradual", "--max-epochs", "2"]
    message = "the 4 phases of gradual need more than 3 epochs, got 2; .*"
    refuses(message, *world.glue(out, *short, "--seeds", "1,2", "--overwrite"))
    assert (out / "results.json").read_bytes() == kept
    refuses(message, *world.glue(tmp_path / "other", *short, "--adapt", "1"))
    assert not (tmp_path / "other-adapt").exists()
