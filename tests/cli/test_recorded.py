"""What a run records is true: the encoder that was used, and paths that hold anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tasks.__main__ import main
from tests.made.texts import sentences

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def config(run: Path) -> Any:
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


# The encoder


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    """Settings that say nothing of the encoder's shape."""
    file = tmp_path / "plain.yaml"
    file.write_text(
        "max_length: 16\nlength: {max_steps: 2}\ntracking: {wandb: false}\n", encoding="utf-8"
    )
    return file


def plain(world: World, defaults: Path, out: Path, *more: object) -> list[object]:
    start = ["glue", "sst2", "--config", defaults, "--data", world.data]
    return [*start, "--encoder", world.pretrained, "--out", out, *more]


def test_the_shape_of_the_checkpoint_is_recorded(
    world: World, defaults: Path, tmp_path: Path, call: Call
) -> None:
    assert call(*plain(world, defaults, tmp_path / "one")).status == 0
    assert call(*plain(world, defaults, tmp_path / "two", "--seeds", "1,2")).status == 0
    for run in ("one", "two", "two/seed-1"):
        shape = config(tmp_path / run)["encoder"]
        assert (shape["hidden_size"], shape["num_hidden_layers"]) == (16, 2)
        assert shape["vocab_size"] == 60
    again = ["glue", "sst2", "--config", tmp_path / "one" / "config.yaml", "--out", tmp_path / "x"]
    outcome = call(*again)  # what was recorded makes the same run again
    assert outcome.status == 0
    assert "settings that are not used" not in outcome.err


def test_a_new_encoder_is_recorded_with_its_vocabulary(world: World) -> None:
    assert config(world.pretrained)["encoder"]["vocab_size"] == 60


def test_a_run_goes_on_by_the_command_that_began_it(
    world: World, defaults: Path, tmp_path: Path, call: Call
) -> None:
    for more in ((), ("--seeds", "1,2")):
        words = plain(world, defaults, tmp_path / f"run{len(more)}", *more)
        assert call(*words).status == 0
        assert call(*words, "--resume").status == 0


def test_a_run_whose_settings_hold_unused_defaults_goes_on(
    world: World, defaults: Path, tmp_path: Path, call: Call
) -> None:
    words = plain(world, defaults, tmp_path / "run")
    assert call(*words).status == 0
    file = tmp_path / "run" / "config.yaml"
    settings = config(tmp_path / "run")
    settings["encoder"]["hidden_size"] = 768  # as earlier versions wrote it
    settings["data"] = os.path.relpath(settings["data"])
    file.write_text(yaml.safe_dump(settings))
    assert call(*words, "--resume").status == 0


def test_shape_flags_beside_a_checkpoint_are_refused(
    world: World, defaults: Path, tmp_path: Path, refuses: Refuses
) -> None:
    words = plain(world, defaults, tmp_path / "run")
    refuses(
        rf"--num-hidden-layers, --hidden-size: expected no settings of the encoder beside "
        rf"--encoder {world.pretrained}, which has num_hidden_layers 2, hidden_size 16; leave "
        r"them out, or start from --encoder none",
        *words,
        *("--num-hidden-layers", 12, "--hidden-size", 768),
    )
    refuses(".*; --dropout sets the encoder's dropout", *words, "--hidden-dropout-prob", 0.2)


def test_an_encoder_section_that_is_not_used_is_named(
    world: World, defaults: Path, tmp_path: Path, call: Call
) -> None:
    defaults.write_text(f"{defaults.read_text()}encoder: {{num_hidden_layers: 3}}\n")
    outcome = call(*plain(world, defaults, tmp_path / "run"))
    assert outcome.status == 0
    assert "not used: num_hidden_layers 3 (the checkpoint has 2)" in outcome.err


# Places


def table(path: Path, seed: int, count: int) -> None:
    rows = [f"{text},{'yes' if 'the' in text else 'no'}" for text in sentences(seed, count)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def made(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and three runs, made there with relative paths."""
    folder: Path = tmp_path_factory.mktemp("here") / "project"
    (folder / "data").mkdir(parents=True)
    shutil.copy(world.glue_config, folder / "glue.yaml")
    shutil.copytree(world.pretrained, folder / "pretrained")
    shutil.copy(world.corpus, folder / "corpus.txt")
    table(folder / "data" / "train.csv", 1, 40)
    table(folder / "data" / "validation.csv", 2, 20)
    classify = "classify --config glue.yaml --encoder pretrained --cache-dir cache"
    data = "--train data/train.csv --validation data/validation.csv"
    pretrain = "pretrain --corpus corpus.txt --tokenizer pretrained --cache-dir cache"
    shape = "--hidden-size 16 --num-hidden-layers 1 --num-attention-heads 2 --max-length 16"
    with contextlib.chdir(folder):
        for words in (
            f"{classify} {data} --learning-rate 1e-2 --out runs/one",
            f"{classify} {data} --learning-rate 1e-3 --out runs/two",
            f"{pretrain} {shape} --max-steps 1 --no-wandb --out runs/base",
        ):
            assert main(words.split()) == 0
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That folder, to be changed or moved; one stands elsewhere."""
    kept = made.rename(made.with_name("kept"))
    shutil.copytree(kept, made)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    yield made
    shutil.rmtree(made, ignore_errors=True)
    kept.rename(made)


def test_paths_are_recorded_in_full_and_as_they_were_typed(project: Path) -> None:
    settings = config(project / "runs" / "one")
    assert settings["train"] == str(project / "data" / "train.csv")
    assert settings["encoder_from"] == str(project / "pretrained")
    assert settings["out"] == str(project / "runs" / "one")
    assert config(project / "runs" / "base")["corpus"] == [str(project / "corpus.txt")]
    inputs = json.loads((project / "runs" / "one" / "inputs.json").read_text())
    assert inputs["train examples"]["place"] == "data/train.csv"


COMMANDS = {
    "evaluate": ("evaluate", "RUNS/one"),
    "compare": ("compare", "RUNS/one", "RUNS/two"),
    "report": ("report", "RUNS/one", "RUNS/two", "--out", "page.html"),
    "predict": ("predict", "RUNS/one", "--input", "texts.txt", "--output", "answers.jsonl"),
    "inspect frequency": ("inspect", "frequency", "RUNS/base", "--out", "frequency"),
    "inspect heads": ("inspect", "heads", "RUNS/one", "--out", "heads"),
}


def at(runs: Path, command: str) -> list[str]:
    return [word.replace("RUNS", str(runs)) for word in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_used_from_another_folder(project: Path, command: str, call: Call) -> None:
    Path("texts.txt").write_text("the cat sees\n")
    outcome = call(*at(project / "runs", command))
    assert outcome.status == 0, outcome.err
    if command == "report":
        assert "texts of its examples are not shown" not in Path("page.html").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_used_after_all_was_moved(
    project: Path, tmp_path: Path, command: str, call: Call
) -> None:
    Path("texts.txt").write_text("the cat sees\n")
    moved = project.rename(tmp_path / "moved")
    outcome = call(*at(moved / "runs", command))
    assert outcome.status == 0, outcome.err


def test_a_run_of_an_earlier_version_is_used_from_another_folder(project: Path, call: Call) -> None:
    file = project / "runs" / "one" / "config.yaml"
    file.write_text(file.read_text().replace(f"{project}/", ""))  # as they were typed
    assert call(*at(project / "runs", "evaluate")).status == 0


@pytest.mark.parametrize("command", ["compare", "predict", "report"])
def test_a_run_is_used_without_its_data(project: Path, command: str, call: Call) -> None:
    shutil.rmtree(project / "data")
    Path("texts.txt").write_text("the cat sees\n")
    outcome = call(*at(project / "runs", command))
    assert outcome.status == 0, outcome.err
    if command == "report":
        page = Path("page.html").read_text()
        assert "are not shown" not in page
        assert any(text in page for text in sentences(2, 20))


def test_a_run_goes_on_from_another_folder(project: Path, call: Call) -> None:
    data = [f"--{split}={project}/data/{split}.csv" for split in ("train", "validation")]
    words = ["classify", "--config", project / "glue.yaml", "--encoder", project / "pretrained"]
    rate = ["--learning-rate", "1e-2", "--out", project / "runs" / "one", "--resume"]
    outcome = call(*words, *data, *rate)
    assert outcome.status == 0, outcome.err


# Names of one's own data


def results(run: Path) -> Any:
    return json.loads((run / "results.json").read_text(encoding="utf-8"))


def test_data_are_called_after_their_file_or_by_name(
    world: World, project: Path, tmp_path: Path, call: Call
) -> None:
    assert config(project / "runs" / "one")["name"] == "data"  # of data/train.csv
    assert results(project / "runs" / "one")["task"] == "classify/data"
    words = ["classify", "--config", project / "glue.yaml", "--encoder", project / "pretrained"]
    data = [f"--{split}={project}/data/{split}.csv" for split in ("train", "validation")]
    out = tmp_path / "run"
    assert call(*words, *data, "--name", "reviews", "--out", out).status == 0
    assert results(out)["task"] == config(out)["task"] == "classify/reviews"
    assert call("evaluate", out).json["task"] == "classify/reviews"
    assert call("compare", out, project / "runs" / "one").status == 0  # the same data
    (row,) = call("runs", out, "--json").json["runs"]
    assert row["task"] == "classify/reviews"


def test_a_run_without_a_name_keeps_that_of_its_version(project: Path, call: Call) -> None:
    run = project / "runs" / "one"
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        text.replace("name: data\n", "").replace("task: classify/data", "task: classify/own")
    )
    assert call("evaluate", run).json["task"] == "classify/own"
    data = [f"--{split}={project}/data/{split}.csv" for split in ("train", "validation")]
    words = ["classify", "--config", project / "glue.yaml", "--encoder", project / "pretrained"]
    again = call(*words, *data, "--learning-rate", "1e-2", "--out", run, "--resume")
    assert again.status == 0, again.err
    assert results(run)["task"] == "classify/own"


def test_the_data_folder_that_a_variable_names_is_recorded(
    world: World,
    defaults: Path,
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FINETUNE_DATA", str(world.data))
    start = ["--encoder", world.pretrained, "--config", defaults]
    fit = ["glue", "sst2", *start, "--out", tmp_path / "fit"]
    adapt = ["adapt", "--task", "glue/sst2", "--encoder", world.pretrained]
    adapt += ["--max-steps", "1", "--max-length", "16", "--no-wandb", "--out", tmp_path / "adapt"]
    assert call(*fit).status == call(*adapt).status == 0
    assert config(tmp_path / "fit")["data"] == config(tmp_path / "adapt")["data"] == str(world.data)
    monkeypatch.delenv("FINETUNE_DATA")
    assert call("evaluate", tmp_path / "fit").status == 0
    assert call("glue", "sst2", "--out", tmp_path / "fit", "--resume").status == 0


def test_the_value_that_chose_the_checkpoint_is_recorded(
    world: World, defaults: Path, tmp_path: Path, call: Call
) -> None:
    out = tmp_path / "run"
    words = plain(world, defaults, out, "--monitor", "loss", "--seeds", "1,2")
    assert call(*words).status == 0
    runs = json.loads((out / "results.json").read_text(encoding="utf-8"))["runs"]
    losses = [run["monitored"]["loss"] for run in runs]
    best = runs[losses.index(min(losses))]["seed"]
    (tmp_path / "x.jsonl").write_text('{"text": "the cat"}\n', encoding="utf-8")
    outcome = call("predict", out, "--input", tmp_path / "x.jsonl", "--output", tmp_path / "y")
    assert f"the best by loss is seed {best}" in outcome.err


def test_a_run_of_a_gpu_is_evaluated_on_what_there_is(
    world: World, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(world.tuned, run)
    text = (run / "config.yaml").read_text(encoding="utf-8")
    (run / "config.yaml").write_text(text.replace("accelerator: auto", "accelerator: gpu"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = call("evaluate", run)
    assert outcome.status == 0
    assert f"{run}: trained on a gpu; none is available here, using cpu\n" in outcome.err
