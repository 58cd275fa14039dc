"""A published encoder by the command line: imported, fine-tuned, adapted, described, refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from finetune.checkpoints.folder import find_tokenizer, load_checkpoint
from finetune.checkpoints.hub import find_checkpoint

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def theirs(world: World) -> Path:
    """A BERT that `transformers` saved, with a masked-LM head and a pooler."""
    folder = world.root / "theirs"
    tokenizer = find_tokenizer(world.tokenizer)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES,
        vocab_size=tokenizer.vocab_size,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    transformers.BertForPreTraining(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def copy(theirs: Path, tmp_path: Path) -> Path:
    """One to be spoilt."""
    return Path(shutil.copytree(theirs, tmp_path / "copy"))


def results_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


def test_import_tells_what_was_kept_and_left_out(theirs: Path, tmp_path: Path, call: Call) -> None:
    out = tmp_path / "ours"
    outcome = call("import-hf", theirs, "--out", out)
    assert outcome.status == 0
    told = outcome.json
    assert (told["family"], told["head"], told["labels"]) == ("bert", "masked_lm", [])
    assert told["left_out"] == ["cls.seq_relationship.bias", "cls.seq_relationship.weight"]
    assert told["pooler"] is True
    assert "left out: cls.seq_relationship.bias" in outcome.err
    assert f"checkpoint: {out}" in outcome.err
    assert load_checkpoint(out).head == {"kind": "masked_lm"}


@pytest.mark.parametrize("imported", [False, True])
def test_fine_tuning_starts_from_encoder_and_pooler(
    imported: bool, theirs: Path, world: World, tmp_path: Path, call: Call
) -> None:
    place = theirs
    if imported:
        place = tmp_path / "ours"
        call("import-hf", theirs, "--out", place)
    run = tmp_path / "run"
    still = ["--learning-rate", "1e-12", "--max-steps", 1, "--weight-decay", 0]
    outcome = call(*world.glue(run, *still, encoder=place))
    assert outcome.status == 0, outcome.err
    assert f"encoder: bert from {theirs}; left out: cls.seq_relationship.bias" in outcome.err
    assert results_of(run)["encoder"] == str(place)
    assert results_of(run)["imported"]["family"] == "bert"
    assert results_of(run)["imported"]["name"] == str(theirs)
    assert f"encoder_from: {place}" in (run / "config.yaml").read_text()
    tuned, start = load_checkpoint(run).weights(), find_checkpoint(theirs).weights()
    for name in [name for name in start if name.startswith("encoder.")]:
        torch.testing.assert_close(tuned[name], start[name])
    torch.testing.assert_close(tuned["head.layers.0.weight"], start["pooler.weight"])
    torch.testing.assert_close(tuned["head.layers.0.bias"], start["pooler.bias"])


def test_other_poolings_have_no_use_for_a_pooler(
    theirs: Path, world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    outcome = call(*world.glue(run, "--pooling", "mean", "--max-steps", 1, encoder=theirs))
    assert outcome.status == 0, outcome.err
    assert load_checkpoint(run).pooler() is None


def test_run_on_an_imported_encoder_resumes_and_is_scored(
    theirs: Path, world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    assert call(*world.glue(run, encoder=theirs)).status == 0
    assert call(*world.glue(run, "--resume", encoder=theirs)).status == 0
    again = call("evaluate", run)
    assert again.json["metrics"] == results_of(run)["metrics"]


def test_language_modelling_goes_on_with_the_published_head(
    theirs: Path, world: World, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    words = ["adapt", "--encoder", theirs, "--corpus", world.corpus, "--out", run]
    words += ["--no-wandb", "--max-length", 16, "--batch-size", 16, "--validation-fraction", 0.1]
    outcome = call(*words, "--learning-rate", "1e-12", "--max-steps", 1, "--weight-decay", 0)
    assert outcome.status == 0, outcome.err
    assert f"encoder: bert from {theirs}; left out: " in outcome.err
    assert results_of(run)["imported"]["name"] == str(theirs)
    after, before = load_checkpoint(run).weights(), find_checkpoint(theirs).weights()
    assert set(before) - set(after) == {"pooler.weight", "pooler.bias"}
    assert "left out: the encoder's pooler, which language modelling does not train" in outcome.err
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name])


def test_folder_of_theirs_is_described_as_ours(theirs: Path, tmp_path: Path, call: Call) -> None:
    call("import-hf", theirs, "--out", tmp_path / "ours")
    assert call("describe", theirs).out == call("describe", tmp_path / "ours").out


class TestBadInput:
    """One line, status 2, and nothing half-written: in the cache, at --out, in the run."""

    def refused(
        self, pattern: str, place: object, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        refuses(pattern, "import-hf", place, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        refuses(pattern, *world.glue(tmp_path / "run", encoder=place))
        assert not (tmp_path / "run").exists()
        assert not list((tmp_path / "cache" / "encoders").glob("*"))

    def test_unknown_architecture(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        settings = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**settings, "model_type": "t5"}))
        self.refused(".*got 't5'; choose one of .*", copy, world, tmp_path, refuses)

    def test_truncated_weights(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        path = copy / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        pattern = f"{path}: expected weights in safetensors form, got .*"
        self.refused(pattern, copy, world, tmp_path, refuses)

    def test_pickle_that_is_no_weights(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        (copy / "model.safetensors").unlink()
        torch.save({"path": Path("somewhere")}, copy / "pytorch_model.bin")
        pattern = ".*pytorch_model.bin: expected pickled tensors and nothing else, .*; refused, .*"
        self.refused(pattern, copy, world, tmp_path, refuses)

    def test_tensor_of_another_shape(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        settings = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**settings, "intermediate_size": 33}))
        pattern = r".*intermediate.dense.\w+ should be floating-point \(33.*got float32 \(32.*"
        self.refused(pattern, copy, world, tmp_path, refuses)

    def test_tokenizer_that_does_not_fit(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        path = copy / "tokenizer.json"
        state = json.loads(path.read_text())
        state["model"]["vocab"]["beyond"] = 500
        path.write_text(json.dumps(state))
        pattern = ".*the tokenizer has 501 tokens but the encoder's embedding has .*"
        self.refused(pattern, copy, world, tmp_path, refuses)

    def test_folder_without_config(
        self, copy: Path, world: World, tmp_path: Path, refuses: Refuses
    ) -> None:
        (copy / "config.json").unlink()
        self.refused(f"{copy}: expected a .* got .*", copy, world, tmp_path, refuses)

    def test_name_without_a_network(self, world: World, tmp_path: Path, refuses: Refuses) -> None:
        pattern = "someone/bert: no such folder, and the hub cannot be reached .*"
        self.refused(pattern, "someone/bert", world, tmp_path, refuses)

    def test_folder_that_is_not_empty(self, copy: Path, tmp_path: Path, refuses: Refuses) -> None:
        pattern = f"{copy} is not empty; name a new folder for --out"
        refuses(pattern, "import-hf", copy, "--out", copy)
