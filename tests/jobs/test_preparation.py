"""What a decoder starts from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from finetune.checkpoints.folder import load_checkpoint
from finetune.decoder import DecoderConfig, SearchConfig
from finetune.encoder import EncoderConfig
from finetune.errors import ConfigError, DataError
from finetune.heads import Seq2Seq
from finetune.jobs import estimate
from finetune.jobs.preparation import Preparation, prepare
from finetune.runs.families import make_task
from finetune.training.config import CacheConfig
from finetune.training.unfreezing.policies import UnfreezeConfig
from tasks.__main__ import main
from tasks.run_settings import WriteRun
from tests.made.families import write_row
from tests.made.texts import sentences, write_lines
from tests.made.world import World


@pytest.fixture(scope="module")
def causal(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model with the tokenizer of the world's masked one."""
    out: Path = tmp_path_factory.mktemp("causal") / "run"
    assert main(world.pretrain(out, "--tokenizer", world.tokenizer, "--causal")) == 0
    return out


def prepared(
    folder: Path, start: Path | str, decoder: DecoderConfig, **more: object
) -> Preparation:
    files = {
        split: str(write_lines(folder / f"{split}.jsonl", map(write_row, sentences(seed, 12))))
        for split, seed in (("train", 0), ("validation", 1))
    }
    run = WriteRun(
        str(start),
        "write/own",
        **files,
        max_length=16,
        decoder=decoder,
        **{"search": SearchConfig(max_target_length=16), **more},  # type: ignore[arg-type]
    )
    return prepare(run, make_task(run))


def test_a_decoder_starts_from_a_causal_run(world: World, causal: Path, tmp_path: Path) -> None:
    made = prepared(tmp_path, world.pretrained, DecoderConfig(decoder_from=str(causal)))
    state = made.module.head.state_dict()
    for name, weight in load_checkpoint(causal).weights().items():
        part, _, rest = name.partition(".")
        ours = {"encoder": f"decoder.{rest}", "head": f"output.{rest}"}[part]
        assert torch.equal(state.pop(ours), weight), name
    assert state
    assert all(".cross_attention" in name for name in state)


def test_a_new_decoder_starts_with_the_words_of_the_encoder(world: World, tmp_path: Path) -> None:
    made = prepared(tmp_path, world.pretrained, DecoderConfig(decoder_layers=1))
    words = "embeddings.word_embeddings.weight"
    theirs = load_checkpoint(world.pretrained).weights()[f"encoder.{words}"]
    assert torch.equal(made.module.head.state_dict()[f"decoder.{words}"], theirs)


def test_a_model_that_reads_both_ways_is_no_decoder(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a causal language model, got one that reads"):
        prepared(tmp_path, world.pretrained, DecoderConfig(decoder_from=str(world.pretrained)))


def test_a_causal_run_is_no_encoder(causal: Path, tmp_path: Path) -> None:
    message = (
        "^encoder: expected one that reads in both directions, got .* give it as --decoder-from$"
    )
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, causal, DecoderConfig())


def test_nor_is_it_beside_a_decoder_or_a_fresh_one_is(causal: Path, tmp_path: Path) -> None:
    message = "^encoder: expected one that reads in both directions"
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, causal, DecoderConfig(decoder_from=str(causal)))
    shape = EncoderConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, causal=True)
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, "none", DecoderConfig(), encoder=shape)
    lstm = dataclasses.replace(shape, block="lstm")
    assert prepared(tmp_path, "none", DecoderConfig(), encoder=lstm).module.encoder.config.causal


def test_targets_are_as_long_as_the_positions_by_default(tmp_path: Path) -> None:
    shape = EncoderConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=20
    )
    made = prepared(tmp_path, "none", DecoderConfig(), encoder=shape, search=SearchConfig(beams=1))
    head = made.module.head
    assert isinstance(head, Seq2Seq)
    assert head.max_target_length == 20
    short = dataclasses.replace(shape, max_position_embeddings=16)
    rows = [{"source": "a", "target": "the cat sees " * 20}] * 2
    for split in ("train", "validation"):
        write_lines(tmp_path / f"long-{split}.jsonl", rows)
    files = {split: str(tmp_path / f"long-{split}.jsonl") for split in ("train", "validation")}
    run = WriteRun("none", "write/own", **files, max_length=16, encoder=short)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected a target of at most 16 tokens"):
        prepare(run, make_task(run))


def test_a_recurrent_run_is_no_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(encoder_config=EncoderConfig(block="lstm", causal=True))
    monkeypatch.setattr("finetune.checkpoints.hub.find_checkpoint", lambda place: found)
    with pytest.raises(ConfigError, match="expected a causal transformer, got block lstm"):
        prepared(tmp_path, "none", DecoderConfig(decoder_from="runs/lstm"))


def test_the_tokenizer_of_both_must_be_one(causal: Path, tmp_path: Path) -> None:
    shape = EncoderConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ConfigError, match="expected the encoder's tokenizer, got another one"):
        prepared(tmp_path, "none", DecoderConfig(decoder_from=str(causal)), encoder=shape)


def test_without_a_tokenizer_one_of_the_pairs_is_trained_each_time_the_same(tmp_path: Path) -> None:
    shape = EncoderConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    both = [prepared(tmp_path, "none", DecoderConfig(), encoder=shape) for _ in range(2)]
    assert both[0].tokenizer.fingerprint == both[1].tokenizer.fingerprint
    assert both[0].run.encoder.vocab_size == both[0].tokenizer.vocab_size < 1000


def test_blocks_are_those_of_the_causal_run_alone() -> None:
    with pytest.raises(ConfigError, match="brings its own blocks; leave decoder_layers out"):
        DecoderConfig(decoder_from="runs/gpt", decoder_layers=2)


def test_the_decoder_is_part_of_the_estimate(world: World, tmp_path: Path) -> None:
    frozen = {"unfreezing": UnfreezeConfig("head"), "caching": CacheConfig(cache=False)}
    made = prepared(tmp_path, world.pretrained, DecoderConfig(), **frozen)
    estimate.batch_cost(made.module, made.data, made.run.trainer)
    # Of three passes of the encoder one is left; the decoder, which is as large, has all three.
    assert 0.5 < estimate._fraction(made, made.plan[0]["boundary"]) < 1
