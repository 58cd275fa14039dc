"""What `finetune inspect` writes is what `finetune report --inside` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finetune.report.inside import KINDS

if TYPE_CHECKING:
    from tests.made.commands import Call
    from tests.made.world import World


def test_a_report_takes_every_file_that_inspect_writes(
    world: World, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "inspection"
    few = ("--limit", 20, "--out", out)
    both = (world.pretrained, world.tuned)
    words: dict[str, tuple[object, ...]] = {
        "attention": (world.tuned, "the cat", "--out", out),
        "heads": (world.tuned, *few),
        "probe": (*both, "--seeds", "1,2", *few),
        "similarity": (*both, *few),
        "words": (world.pretrained, "cat", "--out", out),
        "frequency": (world.pretrained, "--batches", 1, "--out", out),
    }
    assert words.keys() == KINDS.keys()
    for kind, more in words.items():
        assert call("inspect", kind, *more).status == 0
    page = tmp_path / "page.html"
    outcome = call("report", *both, "--inside", out, "--out", page)
    assert outcome.status == 0, outcome.err
    text = page.read_text(encoding="utf-8")
    for key in ("probes", "similarity", "heads", "attention", "words", "frequency"):
        assert f'<section id="{key}"' in text
    assert "pretrained – tuned" in text  # names of groups are in similarity.json
