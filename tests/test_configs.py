"""Every shipped configuration is read, and trains; the one for a GPU is built without memory."""

from __future__ import annotations

import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import settings
from finetune.encoder import Encoder
from finetune.run_settings import FitRun, PretrainRun
from finetune.training.pretrainer import Pretrainer
from tasks.__main__ import main
from tasks.sample import write_sample

CONFIGS = Path(__file__).parent.parent / "configs"
PRETRAIN = sorted((CONFIGS / "pretrain").glob("*.yaml"))
GLUE = sorted((CONFIGS / "glue").glob("*.yaml"))


def commands(config: Path) -> list[list[str]]:
    """The commands in the header of a configuration."""
    header = [line[1:].strip() for line in config.read_text().splitlines() if line[:1] == "#"]
    return [shlex.split(line)[1:] for line in header if line.startswith("finetune ")]


@pytest.mark.parametrize("config", [*PRETRAIN, *GLUE], ids=lambda path: path.stem)
def test_its_header_has_a_command_that_is_understood(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    assert commands(config)
    for words in commands(config):
        assert f"configs/{config.parent.name}/{config.name}" in words
        assert main([*words, "--print-config"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("config", PRETRAIN, ids=lambda path: path.stem)
def test_it_says_only_what_differs_from_the_defaults(config: Path) -> None:
    flags = {"corpus": ["x"], "out": "y"}
    run = settings.read(PretrainRun, config, flags)
    default = settings.read(PretrainRun, None, flags)
    assert run != default
    assert any(vars(run.length).values())
    with torch.device("meta"):
        module = Pretrainer(Encoder(run.encoder), optimizer=run.optimizer, schedule=run.schedule)
    assert module.configure_optimizers().param_groups


def test_base_has_the_size_of_bert_base() -> None:
    run = settings.read(PretrainRun, CONFIGS / "pretrain/base.yaml", {"corpus": ["x"], "out": "y"})
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Encoder(run.encoder).parameters())
    pooler = 768 * 768 + 768  # with us a part of the classification head
    assert parameters + pooler == 109_482_240  # BertModel of bert-base-uncased


@pytest.mark.parametrize("name", ["tiny", "mini"])
def test_it_pretrains_and_is_fine_tuned(name: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"w{number}" for number in range(50)]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join(rng.choices(words, k=40)) for _ in range(150)))
    config = CONFIGS / "pretrain" / f"{name}.yaml"
    small: list[Any] = ["--vocab-size", "70", "--max-steps", "2", "--batch-size", "4"]
    arguments = ["--corpus", corpus, "--out", tmp_path / "run", "--no-wandb", *small]
    assert main(["pretrain", "--config", str(config), *map(str, arguments)]) == 0
    sample = write_sample(tmp_path / "sample")
    for tuning in GLUE:
        out = tmp_path / tuning.stem
        arguments = ["--encoder", tmp_path / "run", "--data", sample.data, "--out", out]
        words = ["rte", "--config", str(tuning), "--no-wandb", "--max-steps", "2"]
        assert main(["glue", *words, *map(str, arguments)]) == 0
        assert settings.read(FitRun, out / "config.yaml").task == "glue/rte"
