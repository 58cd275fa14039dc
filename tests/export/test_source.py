"""Which checkpoint of a folder is exported, and what is known about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from finetune.checkpoints.folder import save_checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.errors import CheckpointError
from finetune.export.source import find_source
from finetune.runs.results import over_seeds
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import tiny_config

CONFIG = tiny_config(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=20,
)


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> Any:
    """Make a run's folder with these checkpoints, settings and results."""

    def make(
        name: str = "run",
        *checkpoints: str,
        settings: str = "",
        results: dict[str, Any] | None = None,
        config: EncoderConfig = CONFIG,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for place in checkpoints or ("checkpoints/best",):
            module = nn.ModuleDict({"encoder": Encoder(config)})
            save_checkpoint(folder / place, module, tokenizer, encoder_config=config, head={})
        if settings:
            (folder / "config.yaml").write_text(settings)
        if results is not None:
            (folder / "results.json").write_text(json.dumps(results))
        return folder

    return make


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ("max_length: 12\ndata: data\n", 12),  # fine-tuning: data is a folder
        ("data: {max_length: 13}\n", 13),  # pretraining
        ("text: {max_length: 14}\ndata: null\n", 14),  # adapting
        ("", 20),  # a checkpoint alone
    ],
)
def test_max_length_is_that_of_the_run_else_of_the_positions(
    settings: str, length: int, run: Any
) -> None:
    assert find_source(run(settings=settings)).max_length == length


def test_positions_without_an_end_give_no_max_length(run: Any) -> None:
    config = EncoderConfig(**{**CONFIG.to_dict(), "position": "rotary"})
    assert find_source(run(config=config)).max_length is None


def test_best_checkpoint_is_taken_with_the_results_of_its_run(run: Any) -> None:
    results = {"task": "a/b", "metrics": {"accuracy": 0.5}}
    folder = run("run", "checkpoints/last", "checkpoints/best", results=results)
    for place in (folder, folder / "checkpoints" / "best"):
        source = find_source(place)
        assert source.checkpoint.folder == folder / "checkpoints" / "best"
        assert (source.results, source.task) == (results, "a/b")


def test_results_are_not_those_of_the_last_checkpoint(run: Any) -> None:
    folder = run("run", "checkpoints/last", "checkpoints/best", results={"task": "a/b"})
    assert find_source(folder / "checkpoints" / "last").results == {}


def many(values: list[float]) -> dict[str, Any]:
    """Results of seeds 7, 8, 9 by two metrics."""
    return over_seeds(
        [
            {"task": "a/b", "split": "validation", "seed": seed, "metrics": {"f1": f1, "em": em}}
            for seed, f1, em in zip((7, 8, 9), values, values[::-1], strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("values", "seed"), [([0.1, 0.3, 0.2], 8), ([0.1, 0.2, 0.3], 9), ([0.3, 0.3, 0.1], 7)]
)
def test_best_seed_by_the_first_metric_is_taken_the_first_of_equals(
    values: list[float], seed: int, run: Any
) -> None:
    places = [f"seed-{number}/checkpoints/best" for number in (7, 8, 9)]
    folder = run("run", *places, settings="seeds: [7, 8, 9]\n", results=many(values))
    source = find_source(folder)
    assert (source.seed, source.chosen_by) == (seed, "f1")
    assert source.checkpoint.folder == folder / f"seed-{seed}" / "checkpoints" / "best"
    named = find_source(folder / "seed-7")
    assert (named.seed, named.checkpoint.folder.parent.parent.name) == (None, "seed-7")


@pytest.mark.parametrize("monitor", ["em", "loss"])
def test_best_seed_is_chosen_by_what_chose_the_checkpoints(monitor: str, run: Any) -> None:
    places = [f"seed-{number}/checkpoints/best" for number in (7, 8, 9)]
    results = many([0.1, 0.2, 0.3])  # em: the other way round
    for number, one in enumerate(results["runs"]):
        one["monitored"] = {"loss": 0.5 + number}
    settings = f"seeds: [7, 8, 9]\nmonitor: {monitor}\n"
    source = find_source(run("run", *places, settings=settings, results=results))
    assert (source.seed, source.chosen_by) == (7, monitor)


def test_seed_whose_folder_is_gone_is_named(run: Any) -> None:
    folder = run(
        "run",
        "seed-7/checkpoints/best",
        settings="seeds: [7, 8, 9]\n",
        results=many([0.1, 0.3, 0.2]),
    )
    with pytest.raises(CheckpointError, match="seed-8: expected a run folder or a checkpoint"):
        find_source(folder)


def test_encoder_alone_has_no_kind(run: Any) -> None:
    assert find_source(run("it", ".")).kind is None
