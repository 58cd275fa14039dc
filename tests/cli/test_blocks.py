"""Recurrent and convolutional encoders and word vectors from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from finetune.checkpoints.folder import load_checkpoint

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


@pytest.fixture(scope="module")
def recurrent(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained LSTM."""
    from tasks.__main__ import main

    out: Path = tmp_path_factory.mktemp("recurrent") / "run"
    more = ("--block", "lstm", "--weight-dropout-prob", "0.3", "--max-steps", "3")
    assert main(world.pretrain(out, *more)) == 0
    return out


def test_a_recurrent_encoder_is_pretrained_and_fine_tuned_group_by_group(
    recurrent: Path, world: World, call: Call, tmp_path: Path
) -> None:
    config = load_checkpoint(recurrent).encoder_config
    assert (config.block, config.position) == ("lstm", "none")
    more = ("--unfreeze", "gradual", "--pooling", "attention", "--max-epochs", "4")
    outcome = call(*world.glue(tmp_path / "run", *more, encoder=recurrent))
    assert outcome.status == 0, outcome.err
    assert load_checkpoint(tmp_path / "run").encoder_config.block == "lstm"
    described = call("describe", recurrent)
    assert "LSTM of 16 in two directions" in described.out
    line = "settings without effect: num_attention_heads 2, intermediate_size 32"
    assert line in described.out


def test_what_only_attention_has_is_refused_in_a_line(
    recurrent: Path, refuses: Refuses, tmp_path: Path
) -> None:
    pattern = "attention weights: expected block transformer, got lstm, which has no attention"
    refuses(pattern, "inspect", "attention", recurrent, "the cat", "--out", tmp_path / "seen")
    pattern = ".*: --format hf has block 'transformer' only, got 'lstm'; use --format onnx"
    refuses(pattern, "export", recurrent, "--format", "hf", "--out", tmp_path / "hf")


def vectors_of(path: Path, size: int) -> Path:
    path.write_text("".join(f"{word} {number}{' 0' * (size - 1)}\n" for number, word in WORDS))
    return path


WORDS = list(enumerate(["the", "a", "cat", "dog"], start=1))


def test_fresh_embeddings_start_from_word_vectors(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    file = vectors_of(tmp_path / "vectors.vec", 6)
    words = ("--tokenizer", world.tokenizer, "--word-vectors", file)
    fresh = world.glue(tmp_path / "run", *words, "--embedding-size", "6", encoder="none")
    outcome = call(*fresh, "--learning-rate", "1e-9", "--no-baselines")
    assert outcome.status == 0, outcome.err
    assert "word vectors: 4 words of 6 in" in outcome.err
    run = load_checkpoint(tmp_path / "run")
    embeddings = run.encoder().embeddings.word_embeddings.weight
    ids = [run.tokenizer().encode_ids([word])[0][0] for _, word in WORDS]
    expected = torch.zeros(4, 6)
    expected[:, 0] = torch.tensor([number for number, _ in WORDS])
    expected *= 0.02 / expected.square().mean().sqrt()
    torch.testing.assert_close(embeddings[ids], expected, atol=1e-5, rtol=1e-4)

    pattern = (
        "word_vectors: expected vectors of 16 numbers, .*, got 6 in .*; set embedding_size to 6.*"
    )
    refuses(pattern, *world.glue(tmp_path / "b", *words, encoder="none"))
    pattern = "word_vectors start the embeddings of a new encoder, but .* has its own; .*"
    refuses(pattern, *world.glue(tmp_path / "c", "--word-vectors", file))
    more = ("--word-vectors", tmp_path / "none.txt")
    refuses(".*none.txt: cannot be read: No such file.*", *world.pretrain(tmp_path / "d", *more))
