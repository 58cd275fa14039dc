"""Against a run whose decoder must look at one place: it copies the last word of its source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finetune.errors import ConfigError
from finetune.inspection import alignment
from tests.made.commands import Call
from tests.made.texts import sentences, write_lines
from tests.made.world import SHAPE, World

SETTINGS = f"""\
{SHAPE}max_length: 24
search: {{max_target_length: 8, beams: 1}}
length: {{max_epochs: 1}}
tracking: {{wandb: false}}
baselines: false
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with attention to the source, and one that reads one vector."""
    from tasks.__main__ import main

    root: Path = tmp_path_factory.mktemp("written")
    (root / "write.yaml").write_text(SETTINGS)
    words = ["write", "--config", root / "write.yaml", "--encoder", "none"]
    for split, seed, count in (("train", 0, 64), ("validation", 1, 16)):
        rows = [{"source": text, "target": text.split()[-1]} for text in sentences(seed, count)]
        words += [f"--{split}", write_lines(root / f"{split}.jsonl", rows)]
    runs = {"attention": root / "attention", "vector": root / "vector"}
    for name, more in (("attention", []), ("vector", ["--pooling", "mean"])):
        assert main([*map(str, words), *more, "--out", str(runs[name])]) == 0
    return runs


def test_each_token_written_has_weights_on_all_tokens_read(written: dict[str, Path]) -> None:
    found = alignment(written["attention"], "the cat sees a dog")
    assert found.source[0] == "[CLS]"
    assert found.source[-1] == "[SEP]"
    assert found.weights.shape == (2, len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(axis=2), 1.0, atol=1e-5)


def test_the_command_shows_and_writes_it(
    written: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    run = written["attention"]
    done = call("inspect", "alignment", run, "the cat", "--out", tmp_path)
    assert done.status == 0
    content = json.loads((tmp_path / "alignment.json").read_text())
    found = alignment(run, "the cat")
    assert content == {"run": str(run), **found.as_json()}
    assert done.out.splitlines()[0].split() == ["written", *found.source]


def test_a_decoder_without_attention_has_no_map(written: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="got one that reads one vector"):
        alignment(written["vector"], "the cat")


def test_other_runs_and_sources_are_refused(written: dict[str, Path], world: World) -> None:
    with pytest.raises(ConfigError, match="expected a run of finetune write, got one of glue/sst2"):
        alignment(world.tuned, "the cat")
    with pytest.raises(ConfigError, match="got a language model"):
        alignment(world.pretrained, "the cat")
    with pytest.raises(ConfigError, match="expected text, as a source of .* has, got 2 texts"):
        alignment(written["attention"], "the cat", "a dog")


def test_the_error_over_the_length_is_in_the_results_and_on_the_page(
    written: dict[str, Path], tmp_path: Path, call: Call
) -> None:
    parts = json.loads((written["vector"] / "results.json").read_text())["report"]
    bins = parts["by_source_length"]
    assert sum(part["examples"] for part in bins) == 16
    assert [part["least"] for part in bins] == sorted({part["least"] for part in bins})
    assert all(part["word_error_rate"] >= 0 for part in bins)
    page = tmp_path / "report.html"
    assert call("report", written["attention"], written["vector"], "--out", page).status == 0
    text = page.read_text()
    assert "Length of the source" in text
    assert "over the length of the source" in text
