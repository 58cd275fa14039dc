"""What a shell has left in RANK and its like makes no second process of one that is alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.made.commands import Call, Start
    from tests.made.world import World

SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "1",
}
STRAY = {
    "rank": {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"},
    "slurm": SLURM,
    "torchrun": {
        **{name: "1" for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID")},
        **{name: "2" for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    },
}
# All commands in one process: what takes its time is to import the libraries.
SCRIPT = """
import json, sys
from pathlib import Path
from tasks.__main__ import main

def run(*words):
    assert main([str(word) for word in words]) == 0, words

folder, *commands = json.loads(sys.argv[1])
for words in commands:
    run(*words)
    (Path(folder) / "pretrained" / "hpc_ckpt_1.ckpt").write_bytes(b"what Lightning would read")
"""


@pytest.mark.parametrize("name", STRAY)
def test_a_process_that_is_alone_does_all_that_the_first_one_does(
    name: str, world: World, tmp_path: Path, start: Start
) -> None:
    pretrained, tuned = tmp_path / "pretrained", tmp_path / "tuned"
    texts, page = tmp_path / "texts.txt", tmp_path / "page.html"
    texts.write_text("the cat\na dog\n")
    pretrain = world.pretrain(pretrained, "--tokenizer", world.tokenizer)
    commands: list[list[Any]] = [
        pretrain,
        [*pretrain, "--overwrite"],  # beside a checkpoint that Lightning would start from
        world.glue(tuned, encoder=pretrained),
        ["predict", tuned, "--input", texts, "--output", tmp_path / "answers.jsonl"],
        ["report", tuned, "--out", page],
    ]
    script = tmp_path / "alone.py"
    script.write_text(SCRIPT)
    words = json.dumps([str(tmp_path), *commands], default=str)
    outcome = start(words, script=script, variables=STRAY[name]).end()
    assert outcome.status == 0, outcome.err
    lines = [line for line in outcome.out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["task"] for line in lines] == ["pretrain", "pretrain", "glue/sst2"]
    for ours, theirs in ((pretrained, world.pretrained), (tuned, world.tuned)):
        mine, other = (json.loads((run / "results.json").read_text()) for run in (ours, theirs))
        assert mine["metrics"] == other["metrics"]
        steps = [
            [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
            for run in (ours, theirs)
        ]
        assert steps[0] == steps[1] != []
    assert (tuned / "predictions" / "validation.jsonl").exists()
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
    assert page.read_text().startswith("<!")


def test_other_commands_do_not_look_at_them(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**STRAY["rank"], **SLURM}.items():
        monkeypatch.setenv(name, value)
    for words in (["evaluate", world.tuned], ["runs", world.root, "--json"]):
        assert call(*words).out
