"""A causal encoder on the command line: it writes, and it is scored on text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from finetune.checkpoints.hub import find_checkpoint
from tasks.__main__ import main
from tests.made.commands import Call, Refuses
from tests.made.world import World


@pytest.fixture(scope="module")
def causal(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal pretraining run."""
    out: Path = tmp_path_factory.mktemp("causal") / "run"
    assert main(world.pretrain(out, "--tokenizer", world.tokenizer, "--causal")) == 0
    return out


def test_a_text_is_continued_on_stdout_and_as_json(causal: Path, call: Call) -> None:
    words = ["generate", causal, "the bird", "--max-tokens", "8", "--seed", "1"]
    shown = call(*words)
    assert shown.status == 0
    row = call(*words, "--json").json
    assert shown.out == f"the bird{row['text']}\n"
    assert len(row["ids"]) == 8 or row["ended"] != "max_tokens"
    greedy = [call(*words, "--temperature", "0", "--seed", seed).out for seed in (1, 2)]
    assert greedy[0] == greedy[1] != ""
    assert row["text"].strip(), row
    ended = call(*words, f"--stop={row['text'].strip()[:2]}", "--json")
    assert ended.status == 0, ended.err
    assert ended.json["ended"] == "stop"


def test_a_memory_that_writing_does_not_use_is_told(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer, "--causal")
    assert call(*words, "--position", "relative", "--memory", 4, "--max-steps", 2).status == 0
    told = "memory 4 is not used: a text is continued within the tokens of a block"
    assert told in call("generate", tmp_path / "run", "the cat").err


def test_prompts_of_a_file_are_continued_by_predict(
    causal: Path, tmp_path: Path, call: Call
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"text": "the cat"}\n{"text": "a dog"}\n')
    rows = call("predict", causal, "--input", prompts).out.splitlines()
    assert [json.loads(row)["prompt"] for row in rows] == ["the cat", "a dog"]


def test_what_cannot_be_continued_is_refused_in_a_line(
    causal: Path, world: World, refuses: Refuses
) -> None:
    refuses(
        r"prompts\[0\]: expected a text to continue, got none; write a word", "generate", causal, ""
    )
    refuses(
        r"prompts\[0\]: the prompt has 41 tokens, but the encoder reads 14; shorten it",
        *("generate", causal, "cat " * 40),
    )
    refuses(".*: expected a causal encoder, .*", "generate", world.pretrained, "the cat")
    refuses(".*: expected a pretraining run, .*", "generate", world.tuned, "the cat")
    refuses("top_p must be a number above 0 .*", "generate", causal, "the", "--top-p", "0")
    refuses(".*nothing: expected a run folder .*", "generate", causal / "nothing", "the cat")


def test_a_causal_run_is_scored_on_a_text(
    causal: Path, world: World, call: Call, refuses: Refuses
) -> None:
    words = ["evaluate", causal, "--corpus", world.corpus, "--json"]
    results = call(*words).json
    names = ["nats_per_token", "word_perplexity", "bits_per_byte", "next_token_accuracy"]
    assert list(results["metrics"]) == names
    assert (results["corpus"]["context"], results["corpus"]["stride"]) == (14, 7)
    assert results["metrics"]["nats_per_token"] < math.log(60)
    finer = call(*words, "--stride", "1").json
    assert finer["corpus"]["tokens"] == results["corpus"]["tokens"]
    assert finer["metrics"] != results["metrics"]
    both = ["evaluate", causal, "--corpus", world.corpus]
    refuses(".*--split does not go with --corpus; remove one of them", *both, "--split", "test")
    refuses("--stride goes with --corpus FILE; .*", "evaluate", causal, "--stride", "3")
    masked = ["evaluate", world.pretrained, "--corpus", world.corpus]
    refuses(".*: expected a causal encoder, .*", *masked)


def test_adapting_turns_a_causal_encoder_and_back(
    causal: Path, world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    def adapt(encoder: Path, objective: str) -> Path:
        out = tmp_path / f"{encoder.name}-{objective}"
        words = ["adapt", "--encoder", encoder, "--corpus", world.corpus, "--max-steps", "2"]
        words += ["--objective", objective, "--out", out, "--max-length", "16"]
        made = call(*words, "--no-wandb")
        assert made.status == 0, made.err
        accuracy = "next_token_accuracy" if objective == "clm" else "masked_accuracy"
        assert accuracy in made.json["metrics"]
        return out

    turned = adapt(causal, "mlm")
    assert not find_checkpoint(turned).encoder_config.causal
    (tmp_path / "masks.txt").write_text("the [MASK] sees a dog\n")
    assert call("predict", turned, "--input", tmp_path / "masks.txt").status == 0
    again = adapt(turned, "clm")
    assert find_checkpoint(again).encoder_config.causal
    assert call("generate", again, "the cat").status == 0
    assert find_checkpoint(adapt(world.pretrained, "clm")).encoder_config.causal
    words = ["adapt", "--encoder", causal, "--corpus", world.corpus, "--out", tmp_path / "other"]
    pattern = "--objective: expected one of mlm, clm or none, got 'nsp'.*"
    refuses(pattern, *words, "--objective", "nsp")


def test_the_language_model_is_an_auxiliary_objective_of_a_task(
    causal: Path, world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    def losses(weight: float) -> list[float]:
        out = tmp_path / f"tuned-{weight}"
        words = world.glue(out, "--lm-weight", weight, "--max-steps", 2, encoder=causal)
        assert call(*words, "--log-every-steps", 1).status == 0
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [row["train/loss"] for row in rows if "train/loss" in row]

    assert losses(0.5)[0] - losses(0.0)[0] == pytest.approx(0.5 * math.log(60), rel=0.3)
    words = world.glue(tmp_path / "no", "--lm-weight", "0.5")
    refuses("lm_weight is for a causal encoder, .*", *words)
