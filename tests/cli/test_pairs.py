"""Heads from the command line: two texts are compared where one mean cannot, layers are mixed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from finetune.checkpoints.folder import load_checkpoint
from finetune.errors import ConfigError
from finetune.heads.config import PAIR_POOLINGS
from finetune.jobs.preparation import check_segments
from finetune.text.tokenizer.tokenizer import Template
from finetune.training.prefix.store import list_entries
from tests.made.commands import Call, Refuses
from tests.made.texts import write_csv
from tests.made.world import World

WORDS = "the cat dog sat on mat ran a good bad bird tree".split()


def write_pairs(path: Path, count: int, seed: int) -> Path:
    """Pairs of two words each: the same two in any order, or two others. No word tells which."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        first = rng.sample(WORDS, 2)
        same = number % 2 == 0
        second = rng.sample(first if same else sorted(set(WORDS) - set(first)), 2)
        rows.append((" ".join(first), " ".join(second), "same" if same else "other"))
    return write_csv(path, ("sentence1", "sentence2", "label"), rows)


def test_a_frozen_encoder_and_its_cache_are_enough_to_compare_two_texts(
    world: World, tmp_path: Path, call: Call
) -> None:
    train = write_pairs(tmp_path / "train.csv", 400, seed=1)
    validation = write_pairs(tmp_path / "validation.csv", 200, seed=2)

    def accuracy(pooling: str) -> float:
        words = ["classify", "--config", world.glue_config, "--encoder", world.pretrained]
        words += ["--train", train, "--validation", validation, "--out", tmp_path / pooling]
        words += ["--pooling", pooling, "--unfreeze", "head", "--max-epochs", 6]
        made = call(*words, "--cache-dir", tmp_path / "cache")
        assert made.status == 0
        return float(made.json["metrics"]["accuracy"])

    assert accuracy("mean") < 0.65
    assert accuracy("segments") > 0.85
    align = accuracy("align")
    assert align > 0.95
    run = tmp_path / "align"
    assert load_checkpoint(run).head["pooling"] == "align"
    assert call("evaluate", run).json["metrics"]["accuracy"] == align
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"sentence1": "cat mat", "sentence2": "mat cat"}) + "\n")
    assert (
        call("predict", run, "--input", asked, "--output", tmp_path / "answers.jsonl").status == 0
    )
    (answer,) = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert json.loads(answer)["prediction"] == "same"


@pytest.mark.parametrize("pooling", PAIR_POOLINGS)
def test_one_text_alone_is_no_pair(
    pooling: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    refuses(
        f".*--pooling {pooling} compares two texts, and glue/sst2 has one text an example; "
        "choose --pooling mean, or attention",
        *world.glue(tmp_path / "run", "--pooling", pooling),
    )
    assert not (tmp_path / "run").exists()


def test_mixed_layers_are_cached_below_blocks_that_are_trained_later(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = ["--layers", "mix", "--unfreeze", "gradual", "--phase-epochs", 0.5, "--seed", 1]
    for name, more in (("cached", ()), ("computed", ["--no-cache"])):
        made = call(*world.glue(tmp_path / name, *words, *more, "--cache-dir", tmp_path / "cache"))
        assert made.status == 0
    entries = list_entries(tmp_path / "cache" / "hidden")
    assert sorted(entry.depth for entry in entries) == [1, 1, 2, 2]
    cached, computed = (
        load_checkpoint(tmp_path / name).weights() for name in ("cached", "computed")
    )
    assert all(torch.equal(cached[name], weight) for name, weight in computed.items())


def test_layers_are_mixed_over_a_frozen_encoder_too(
    world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    words = ["--layers", "mix", "--unfreeze", "head", "--seed", 1]
    made = call(*world.glue(tmp_path / "run", *words, "--cache-dir", tmp_path / "cache"))
    assert made.status == 0
    entries = list_entries(tmp_path / "cache" / "hidden")
    assert sorted(entry.depth for entry in entries) == [1, 1, 2, 2]  # of both splits
    score = made.json["metrics"]
    assert call(*world.glue(tmp_path / "computed", *words, "--no-cache")).json["metrics"] == score
    cached, computed = (load_checkpoint(tmp_path / name).weights() for name in ("run", "computed"))
    assert all(torch.equal(cached[name], weight) for name, weight in computed.items())
    assert load_checkpoint(tmp_path / "run").weights()["head.mix.weights"].any()  # it has learned
    assert call("evaluate", tmp_path / "run").json["metrics"] == score
    dry = call(*world.glue(tmp_path / "dry", *words), "--dry-run")
    assert "export formats: ONNX (" in dry.out + dry.err
    assert "export formats: ONNX (" in call("describe", tmp_path / "run").out
    refuses(
        ".*--format hf has layers 'last' only, got 'mix'; use --format onnx",
        *("export", tmp_path / "run", "--format", "hf", "--out", tmp_path / "out"),
    )


def data_with(template: Template) -> Any:
    """What `check_segments` asks of the data: pairs, and a tokenizer with this template."""
    return SimpleNamespace(
        train_split="train",
        examples=lambda split: [SimpleNamespace(texts=("a", "b"))],
        tokenizer=SimpleNamespace(template=lambda *, pair: template),
    )


@pytest.mark.parametrize("middle", [[3], [3, 3]])
def test_a_separator_between_and_behind_is_enough(middle: list[int]) -> None:
    check_segments(data_with(Template([2], middle, [3], 0)), "segments")


@pytest.mark.parametrize(
    "template",
    [
        Template([], [3], [3, 2], 1),  # as of XLNet, [CLS] at the end
        Template([2], [3], [], 1),
        Template([2], [], [3], 1),
        Template([2], [3], [4], 1),
        Template([2, 2], [3], [3], 1),
    ],
)
def test_a_template_without_such_separators_is_refused(template: Template) -> None:
    with pytest.raises(ConfigError, match=r"expects a tokenizer that writes \[CLS\] a \[SEP\] b"):
        check_segments(data_with(template), "align")
