"""`finetune corpus`, and a pretraining on several corpora with weights."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from finetune.text.corpus import corpus, preparing
from tests.cli.test_stopping import full_disk, kill_at

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

SHAPE = ["--max-length", "16", "--validation-fraction", "0.1"]


def results_of(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())


def weighted(world: World, folder: Path) -> list[str]:
    """The corpus of the world, and a copy of its first third."""
    lines = world.corpus.read_text().split("\n")
    other = folder / "other.txt"
    other.write_text("\n".join(lines[: len(lines) // 3]))
    return [f"{world.corpus}:0.7", f"{other}:0.3"]


def test_prepared_corpus_is_found_by_pretraining(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = tmp_path / "cache", tmp_path / "run"
    words = ["--corpus", world.corpus, "--tokenizer", world.tokenizer, "--cache-dir", cache]
    outcome = call("corpus", *words, *SHAPE, "--json")
    assert outcome.status == 0, outcome.err
    facts = json.loads(outcome.out)
    assert f"prepared in {cache}" in outcome.err
    assert facts["train_blocks"] == results_of(world.pretrained)["data"]["train_blocks"]
    monkeypatch.setattr(preparing, "write_tokens", lambda *_: pytest.fail("prepared again"))
    before = {path: path.stat().st_mtime_ns for path in cache.glob("*/*/*")}
    outcome = call(*world.pretrain(run, "--tokenizer", world.tokenizer, "--cache-dir", cache))
    assert outcome.status == 0, outcome.err
    after = {path: path.stat().st_mtime_ns for path in cache.glob("*/*/*")}
    assert {path: after.get(path) for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} <= {"checked.json"}
    assert results_of(run)["metrics"] == results_of(world.pretrained)["metrics"]


def test_a_full_disk_keeps_the_shards_that_are_made(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_SHARD", world.corpus.stat().st_size // 3)
    cache, made, plain = tmp_path / "cache", [], preparing.write_tokens
    words = ["corpus", "--corpus", world.corpus, "--tokenizer", world.tokenizer, *SHAPE]
    words += ["--cache-dir", cache, "--tokenize-workers", 1]

    def written(documents: Any, tokenizer: Any, folder: Path, *rest: Any) -> None:
        with full_disk() if made else nullcontext():
            plain(documents, tokenizer, folder, *rest)
        made.append(folder.name)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_tokens", written)
        outcome = call(*words)
    assert outcome.status == 2
    advice = "files that were complete are kept; fix this, then run the same command again"
    assert outcome.complaint.endswith(f": File too large; {advice}")
    assert made == ["00000"]
    assert call(*words).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_tokens", lambda *_: pytest.fail("prepared again"))
        assert call(*words).status == 0
    assert len(list(cache.glob("tokens-*/0*"))) > 2


@pytest.mark.parametrize("setting", ["local_dir", "cache_dir"])
def test_a_folder_that_cannot_be_made_is_named_with_its_setting(
    setting: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "file").write_text("")
    words = ["corpus", "--corpus", world.corpus, "--tokenizer", world.tokenizer, *SHAPE]
    flag = f"--{setting.replace('_', '-')}"
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none/below")):
        pattern = f"{setting} {place}: .*; name a folder that can be written"
        refuses(pattern, *words, flag, place)


def test_weighted_pretraining_resumes_exactly(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = weighted(world, tmp_path)

    def words(run: Path, *more: object) -> list[str]:
        made = world.pretrain(run, "--tokenizer", world.tokenizer, *more)
        place = made.index("--corpus")
        return [*made[: place + 1], *inputs, *made[place + 2 :]]

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert call(*words(whole)).status == 0
    with monkeypatch.context() as patch:
        kill_at(5, patch)
        assert call(*words(stopped)).status == 130
    other = [part.replace(":0.7", ":0.6") for part in words(stopped, "--resume")]
    outcome = call(*other)
    assert outcome.status == 2
    assert "corpus was [" in outcome.complaint
    assert "resume with the settings of its config.yaml" in outcome.complaint
    assert call("pretrain", "--out", stopped, "--resume").status == 0  # by its config.yaml
    assert results_of(stopped)["metrics"] == results_of(whole)["metrics"]
    mixed = results_of(whole)["data"]["inputs"]
    assert [one["weight"] for one in mixed] == [0.7, 0.3]
    assert mixed[1]["passes"] > mixed[0]["passes"]


def test_bad_weights_are_refused_in_one_line(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = ["--tokenizer", world.tokenizer, "--cache-dir", tmp_path]
    other = tmp_path / "other.txt"
    shutil.copy(world.corpus, other)
    refuses(".* got none for .*", "corpus", "--corpus", f"{world.corpus}:0.5", other, *words)
    refuses(".* a weight above 0 .*", "corpus", "--corpus", f"{world.corpus}:0", *words)
    assert not list(tmp_path.glob("tokens-*"))
