"""A checkpoint with a flipped bit: whoever reads it says which file is damaged, in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from finetune.checkpoints.hub import find_checkpoint
from finetune.files.checksums import CHECKSUMS

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World


def flip(path: Path, place: float = 0.9) -> None:
    """Change one bit of a file, by default in the numbers and not in the header."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(bytes(content))


@pytest.fixture
def tuned(world: World, tmp_path: Path) -> Path:
    """A copy of the fine-tuned run, as it would go on: with its cache and its encoder."""
    return Path(shutil.copytree(world.tuned, tmp_path / "tuned"))


READERS = {
    "evaluate": "evaluate {run}",
    "predict": "predict {run} --input {input}",
    "export": "export {run} --format hf --out {out}",
    "inspect": "inspect words {run} the",
    "encoder": "glue sst2 --config {config} --data {data} --encoder {run} --out {out}",
    "adapt": "adapt --corpus {corpus} --encoder {run} --out {out} --max-length 16",
    "submit": "submit {run} --out {out} --allow-missing --allow-subset --data {data}",
}


@pytest.mark.parametrize("reader", READERS)
def test_every_command_that_reads_a_checkpoint_notices_a_flipped_bit_in_its_weights(
    reader: str, world: World, tuned: Path, tmp_path: Path, call: Call
) -> None:
    flip(tuned / "checkpoints" / "best" / "model.safetensors")
    (tmp_path / "texts.txt").write_text("the cat\n")
    data = Path(shutil.copytree(world.data, tmp_path / "data"))
    (data / "glue_data" / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe cat\n")
    names = {
        "run": tuned,
        "input": tmp_path / "texts.txt",
        "out": tmp_path / "out",
        "config": world.glue_config,
        "corpus": world.corpus,
        "data": data,
    }
    outcome = call(*(word.format(**names) for word in READERS[reader].split()))
    assert outcome.status == 2
    assert outcome.complaint.startswith(
        f"finetune: {tuned}/checkpoints/best/model.safetensors: expected the file as it was saved, "
        "got other content"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["model.safetensors", "trainer.pt", "config.json", "tokenizer.json", CHECKSUMS]
)
def test_a_run_is_not_resumed_from_a_damaged_checkpoint(
    name: str, world: World, tuned: Path, call: Call
) -> None:
    file = tuned / "checkpoints" / "last" / name
    if name == "config.json":  # stays readable
        file.write_text(file.read_text().replace("{", "{ ", 1))
    else:
        flip(file)
    outcome = call(*world.glue(tuned, "--resume"))
    assert outcome.status == 2
    assert outcome.complaint.startswith(f"finetune: {tuned}/checkpoints/last/")
    assert name in outcome.complaint
    assert "restore it from a copy" in outcome.complaint


def test_a_lost_state_is_not_taken_for_a_run_that_has_not_begun(
    world: World, tuned: Path, call: Call
) -> None:
    (tuned / "checkpoints" / "last" / "trainer.pt").unlink()
    outcome = call(*world.glue(tuned, "--resume"))
    assert outcome.status == 2
    assert "last/trainer.pt: expected the file as it was saved, got none" in outcome.complaint


def test_checkpoints_of_earlier_versions_have_no_checksums_and_are_read(
    world: World, tuned: Path, call: Call
) -> None:
    for name in ("best", "last"):
        (tuned / "checkpoints" / name / CHECKSUMS).unlink()
    before = call("evaluate", world.tuned).json
    assert call("evaluate", tuned).json == before
    assert call(*world.glue(tuned, "--resume")).json == before
    with_checksums, without = (find_checkpoint(run).digests() for run in (world.tuned, tuned))
    assert with_checksums == without
