"""Every shipped configuration is read, and trains; the one for a GPU is built without memory."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shlex
import string
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.encoder import Encoder
from finetune.encoder.cost import counts as plain_counts
from finetune.runs.settings import PretrainRun
from finetune.settings import fields as settings
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.loop.pretrainer import Pretrainer
from tasks.__main__ import main
from tasks.families import FAMILIES
from tasks.sample.sample import write_sample
from tests.made.families import write_families
from tests.made.nets import hugging_face_model
from tests.made.texts import learned_tokenizer

CONFIGS = Path(__file__).parent.parent / "configs"
PRETRAIN = sorted((CONFIGS / "pretrain").glob("*.yaml"))
MINILM = sorted((CONFIGS / "minilm").glob("*.yaml"))
SWEEPS = sorted((CONFIGS / "sweeps").glob("*.yaml"))  # tests/test_sweeps.py
OTHERS = {*PRETRAIN, *MINILM, *SWEEPS}
FIT = sorted(path for path in CONFIGS.glob("*/*.yaml") if path not in OTHERS)
COMMANDS = {
    "glue": ["glue", "rte"],
    "squad": ["squad", "1.1"],
    "race": ["race", "middle"],
    "classify": ["classify"],
    "write": ["write"],
}
"""Folder of configs -> the words of the command that reads them."""


def commands(config: Path) -> list[list[str]]:
    """The commands in the header of a configuration."""
    header = [line[1:].strip() for line in config.read_text().splitlines() if line[:1] == "#"]
    return [shlex.split(line)[1:] for line in header if line.startswith("finetune ")]


@pytest.mark.parametrize(
    "config", [*PRETRAIN, *MINILM, *FIT], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_its_header_has_a_command_that_is_understood(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    assert commands(config)
    for words in commands(config):
        assert f"configs/{config.parent.name}/{config.name}" in words
        assert main([*words, "--print-config"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "config", [*PRETRAIN, *FIT], ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_its_encoder_is_described(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = PretrainRun if config in PRETRAIN else FAMILIES[config.parent.name].settings()
    missing = {"encoder_from": "none", "corpus": ["x"], "out": "y"}
    known = {field.name for field in dataclasses.fields(kind)}
    run = settings.read(kind, config, {key: missing[key] for key in missing.keys() & known})
    assert main(["describe", str(config), "--json"]) == 0, capsys.readouterr().err
    (counts,) = json.loads(capsys.readouterr().out).values()
    size = run.vocabulary.vocab_size if "vocabulary" in known else run.encoder.vocab_size
    assert counts == plain_counts(dataclasses.replace(run.encoder, vocab_size=size))


@pytest.mark.parametrize("config", MINILM, ids=lambda path: path.stem)
def test_settings_that_name_no_encoder_are_not_described_as_another(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named, nameless = tmp_path / "named.yaml", tmp_path / "nameless.yaml"
    named.write_text(
        re.sub(r"(?m)^encoder_from: \S+", f"encoder_from: {tmp_path / 'none'}", config.read_text())
    )
    nameless.write_text(re.sub(r"(?m)^encoder_from: .*$", "", config.read_text()))
    assert main(["describe", str(nameless)]) == 2
    assert "got settings of training alone" in capsys.readouterr().err
    assert main(["describe", str(named)]) == 2
    assert f"finetune: {tmp_path / 'none'}: " in capsys.readouterr().err


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


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the encoder that the recipes name a folder, so that no hub is asked."""
    folder = tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"
    hugging_face_model("Model", learned_tokenizer(), folder, vocab_size=60)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    "config", sorted(CONFIGS.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_it_is_described(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    is_sweep = config in SWEEPS
    assert main(["describe", str(config)]) == 2 * is_sweep
    told = "".join(capsys.readouterr())
    assert ("got a sweep;" if is_sweep else "parameters") in told


@pytest.mark.filterwarnings("ignore:.*mostly .UNK.")  # made words, of which a vocabulary is learned
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
    files = write_families(tmp_path / "files")
    sample = write_sample(tmp_path / "sample")
    for tuning in FIT:
        family = tuning.parent.name
        out = tmp_path / f"{family}-{tuning.stem}"
        data: list[Any] = ["--data", sample.data if family == "glue" else files.data]
        if family == "classify":
            data = ["--train", files.own("train.csv"), "--validation", files.own("validation.csv")]
        if family == "write":
            names = ("train-pairs.jsonl", "validation-pairs.jsonl")
            data = ["--train", files.own(names[0]), "--validation", files.own(names[1])]
        arguments = [*data, "--encoder", tmp_path / "run", "--out", out, "--config", tuning]
        # The length of mini.yaml, whose positions are learned.
        flags = ["--no-wandb", "--max-steps", "2", "--max-length", "128"]
        assert main([*COMMANDS[family], *flags, *map(str, arguments)]) == 0
        assert (out / "results.json").is_file()


@pytest.mark.filterwarnings("ignore:.*mostly .UNK.")
def test_ten_minutes_on_a_gpu_are_tried_small_on_the_cpu(tmp_path: Path) -> None:
    """Its precision, optimizer, schedule by the clock, accumulation and workers; not its size."""
    config = CONFIGS / "pretrain" / "ten-minutes.yaml"
    run = settings.read(PretrainRun, config, {"corpus": ["x"], "out": "y"})
    tokens = run.loader.batch_size * run.data.max_length
    assert tokens == 2**18
    assert run.loader.batch_size % run.loader.micro_batches == 0
    assert run.vocabulary.vocab_size % 64 == 0
    corpus, out = tmp_path / "corpus.txt", tmp_path / "run"
    words = random.Random(0).choices([f"w{number}" for number in range(50)], k=4000)
    corpus.write_text("\n\n".join(" ".join(words[n : n + 40]) for n in range(0, 4000, 40)))
    sizes = {"hidden-size": 16, "num-hidden-layers": 2, "num-attention-heads": 2}
    sizes |= {"intermediate-size": 32, "vocab-size": 70, "batch-size": 8, "num-workers": 1}
    flags: list[Any] = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    flags += ["--corpus", corpus, "--out", out, "--accelerator", "cpu", "--max-minutes", 0.02]
    flags += ["--log-every-steps", 1, "--no-wandb"]
    assert main(["pretrain", "--config", str(config), *map(str, flags)]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = [value for line in lines for name, value in line.items() if name.startswith("lr/")]
    assert max(rates) <= 4 * run.optimizer.learning_rate
    assert json.loads((out / "results.json").read_text())["metrics"]["loss"] > 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every task that has a recipe for MiniLM, and a vocabulary of letters."""
    folder = tmp_path_factory.mktemp("small")
    write_families(folder)
    write_sample(folder / "sample")
    (folder / "sample" / "glue_data").rename(folder / "data" / "glue_data")
    columns = {"MRPC": "Quality\t#1 String\t#2 String", "QNLI": "question\tsentence\tlabel"}
    rows = {"MRPC": "1\ta\tb\n0\tb\ta", "QNLI": "a\tb\tentailment\nb\ta\tnot_entailment"}
    for name, header in columns.items():
        (folder / "data" / "glue_data" / name).mkdir()
        for split in ("train", "dev"):
            file = folder / "data" / "glue_data" / name / f"{split}.tsv"
            file.write_text(f"{header}\n{rows[name]}\n")
    letters = [string.ascii_letters + string.digits + " " + " ".join(string.ascii_lowercase)]
    train_tokenizer(letters * 2, TokenizerConfig(vocab_size=100)).save(folder / "tokenizer")
    return folder


@pytest.mark.parametrize("config", MINILM, ids=lambda path: path.stem)
def test_a_recipe_for_minilm_has_a_plan_and_three_epochs(
    config: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    words = commands(config)[0]
    words[words.index("--encoder") + 1] = "none"
    words[words.index("--data") + 1] = str(small / "data")
    sizes = {"hidden-size": 8, "num-hidden-layers": 6, "num-attention-heads": 2}
    flags = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    flags += ["--tokenizer", str(small / "tokenizer"), "--cache-dir", str(small / "cache")]
    assert main([*words, *flags, "--out", str(small / "run"), "--dry-run"]) == 0
    assert not (small / "run").exists()
    assert "block_6" in "".join(capsys.readouterr())


def test_every_family_of_tasks_has_a_configuration() -> None:
    assert {path.parent.name for path in FIT} == set(COMMANDS)
    others = {"answer": "squad", "choose": "race"}  # own data of the same form
    assert {others.get(word, word) for word in FAMILIES} == set(COMMANDS)
