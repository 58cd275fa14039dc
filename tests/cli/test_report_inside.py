"""What `finetune inspect` writes is what `finetune report --inside` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finetune.report.inside import KINDS
from tests.made.texts import write_lines

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World


def test_a_report_takes_every_file_that_inspect_writes(
    world: World, tmp_path: Path, call: Call
) -> None:
    out, writer = tmp_path / "inspection", tmp_path / "writer"
    pairs = write_lines(tmp_path / "pairs.jsonl", [{"source": "the cat", "target": "a dog"}] * 4)
    files = ("--train", pairs, "--validation", pairs, "--no-wandb")
    write = (
        "write",
        *files,
        "--encoder",
        world.pretrained,
        "--max-length",
        16,
        "--max-steps",
        1,
        "--max-target-length",
        8,
    )
    assert call(*write, "--out", writer).status == 0
    few = ("--limit", 20, "--out", out)
    both = (world.pretrained, world.tuned)
    words: dict[str, tuple[object, ...]] = {
        "attention": (world.tuned, "the cat", "--out", out),
        "heads": (world.tuned, *few),
        "probe": (*both, "--seeds", "1,2", *few),
        "similarity": (*both, *few),
        "words": (world.pretrained, "cat", "--out", out),
        "alignment": (writer, "the cat", "--out", out),
        "frequency": (world.pretrained, "--batches", 1, "--out", out),
    }
    assert words.keys() == KINDS.keys()
    for kind, more in words.items():
        assert call("inspect", kind, *more).status == 0
    page = tmp_path / "page.html"
    outcome = call("report", *both, "--inside", out, "--out", page)
    assert outcome.status == 0, outcome.err
    text = page.read_text(encoding="utf-8")
    for key in ("probes", "similarity", "heads", "attention", "alignment", "words", "frequency"):
        assert f'<section id="{key}"' in text
    assert "pretrained – tuned" in text  # names of groups are in similarity.json
