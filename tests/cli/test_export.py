"""`finetune export`: a run as a folder for other software, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import transformers

from finetune.jobs.prediction import load
from tests.made.commands import Call, Refuses
from tests.made.texts import sentences
from tests.made.world import World

PARTS = [
    "README.md",
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.yaml",
]


def hf(run: Path, out: Path, *more: object) -> list[object]:
    return ["export", run, "--format", "hf", "--out", out, *more]


def test_run_is_exported(world: World, call: Call, tmp_path: Path) -> None:
    outcome = call(*hf(world.tuned, tmp_path / "new" / "out"))
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err == f"exported: {tmp_path}/new/out\n"
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == PARTS
    card = (tmp_path / "new" / "out" / "README.md").read_text()
    results = json.loads((world.tuned / "results.json").read_text())
    assert f"{results['metrics']['accuracy']:.4f}" in card
    assert "`glue/sst2` from" in card


def test_pooling_of_its_own_goes_out_with_its_code(
    world: World, call: Call, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert call(*world.glue(run, "--pooling", "mean")).status == 0
    outcome = call(*hf(run, out, "--json", "--license", "mit", "--language", "en,de"))
    assert outcome.status == 0
    assert "trust_remote_code=True" in outcome.err
    assert "bert pools by 'cls' only, got 'mean'" in outcome.err
    assert outcome.json["architecture"] == "FinetuneForSequenceClassification"
    assert (out / "modeling_finetune.py").is_file()
    card = (out / "README.md").read_text()
    assert "license: mit\n" in card
    assert "language:\n- en\n- de\n" in card
    assert call(*world.glue(tmp_path / "again", encoder=out)).status == 0


def test_formats_are_said_before_training(world: World, call: Call, tmp_path: Path) -> None:
    rotary = ["--position", "rotary", "--norm-position", "pre"]
    outcome = call(*world.pretrain(tmp_path / "run", *rotary, "--max-steps", 1))
    assert outcome.status == 0
    lines = [line for line in outcome.err.splitlines() if line.startswith("export formats: ")]
    assert [line.partition(" (")[0].split()[-1] for line in lines] == ["trust_remote_code=True"]
    told = call("describe", tmp_path / "run" / "config.yaml")
    assert "bert has position 'learned' only" in " ".join(told.out.split())
    dry = call(*world.glue(tmp_path / "tuned", "--dry-run"))
    assert "export formats: transformers (as bert), ONNX" in dry.err.splitlines()


def test_run_is_exported_as_a_graph(world: World, call: Call, tmp_path: Path) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the extra `onnx` is not installed")
    outcome = call("export", world.tuned, "--format", "onnx", "--out", tmp_path / "out")
    assert (outcome.status, outcome.out) == (0, "")
    assert outcome.err.endswith(f"exported: {tmp_path}/out\n")
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"README.md", "config.json", "model.onnx", "tokenizer.json"} <= made
    again = call(*hf(world.tuned, tmp_path / "out", "--overwrite"))  # the graph is an export too
    assert again.status == 0


def test_best_checkpoint_by_its_own_folder_has_the_same_export(
    world: World, call: Call, tmp_path: Path
) -> None:
    for name, place in (("a", world.tuned), ("b", world.tuned / "checkpoints" / "best")):
        assert call(*hf(place, tmp_path / name / "it")).status == 0
    for part in PARTS:
        assert (tmp_path / "a" / "it" / part).read_bytes() == (
            tmp_path / "b" / "it" / part
        ).read_bytes()


def test_export_is_replaced_when_asked(
    world: World, call: Call, refuses: Refuses, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert call(*hf(world.tuned, out)).status == 0
    refuses(
        ".*out already contains an export; replace it with --overwrite .*", *hf(world.tuned, out)
    )
    assert call(*hf(world.pretrained, out, "--overwrite")).status == 0
    settings = json.loads((out / "config.json").read_text())
    assert settings["architectures"] == ["BertForMaskedLM"]


def test_empty_folder_is_taken(world: World, call: Call, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert call(*hf(world.tuned, tmp_path / "out")).status == 0


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_folder_of_something_else_is_left_alone(
    more: list[str], world: World, refuses: Refuses, tmp_path: Path
) -> None:
    (tmp_path / "out" / "mine").mkdir(parents=True)
    for name in ("README.md", "config.json"):
        (tmp_path / "out" / name).write_text("mine")
    message = ".*out is not empty and contains no export; choose a new folder for --out"
    refuses(message, *hf(world.tuned, tmp_path / "out", *more))
    assert (tmp_path / "out" / "README.md").read_text() == "mine"


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/best"])
def test_run_is_never_replaced(place: str, world: World, refuses: Refuses, tmp_path: Path) -> None:
    run = shutil.copytree(world.tuned, tmp_path / "run")
    before = sorted(path for path in run.rglob("*"))
    source = run / "checkpoints" / "best"
    message = ".*(contains the run that is exported|contains no export); choose a.*"
    refuses(message, *hf(source, run / place, "--overwrite"))
    assert sorted(path for path in run.rglob("*")) == before


def test_place_without_a_name_is_refused(
    world: World, refuses: Refuses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuses(r"--out \.: name a new folder, such as export", *hf(world.tuned, Path(".")))


def test_file_is_no_place(world: World, refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    refuses("--out .*out: .*out is a file; name a folder", *hf(world.tuned, tmp_path / "out"))


def test_no_run_is_one_clear_line(refuses: Refuses, tmp_path: Path) -> None:
    message = ".*nowhere: expected a run folder or a checkpoint folder .*, got no such folder.*"
    refuses(message, *hf(tmp_path / "nowhere", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_words_are_checked(world: World, refuses: Refuses, tmp_path: Path) -> None:
    run, out = world.tuned, tmp_path / "out"
    refuses("--int8 goes with --format onnx; remove it", *hf(run, out, "--int8"))
    refuses("--data goes with --int8, .*; remove it", *hf(run, out, "--data", "data"))
    refuses("--ensemble goes with --format onnx: transf.*", *hf(run, out, "--ensemble"))
    onnx = ("export", run, "--format", "onnx", "--out", out)
    refuses("--int8 is measured on one model: remove.*", *onnx, "--ensemble", "--int8")
    refuses("export: .*required: --format", "export", run, "--out", out)
    refuses("export: .*--format: invalid choice: 'tf'.*", "export", run, "--format", "tf")
    refuses("export: unknown option --in8; did you mean '--int8'.*", *hf(run, out, "--in8"))


@pytest.mark.parametrize(
    ("theirs", "wanted"),
    [
        ("Roberta", "RobertaForSequenceClassification"),
        ("DistilBert", "BertForSequenceClassification"),  # its own has relu where ours has tanh
    ],
)
def test_encoder_that_was_brought_goes_back_as_it_came_where_its_head_can(
    theirs: str, wanted: str, world: World, call: Call, tmp_path: Path
) -> None:
    bring = tmp_path / "theirs"
    config = getattr(transformers, f"{theirs}Config")(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=40,
        pad_token_id=0,
    )
    getattr(transformers, f"{theirs}ForMaskedLM")(config).save_pretrained(bring)
    for file in world.tokenizer.iterdir():
        shutil.copy(file, bring)
    assert call(*world.glue(tmp_path / "run", encoder=bring)).status == 0
    assert call(*hf(tmp_path / "run", tmp_path / "out")).status == 0
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == [wanted]

    classify = transformers.pipeline("text-classification", model=str(tmp_path / "out"))
    texts = sentences(5, 4)
    for ours, found in zip(load(tmp_path / "run").predict(texts), classify(texts), strict=True):
        expected = ours["probabilities"][found["label"]]
        assert found["score"] == pytest.approx(expected, abs=1e-5)


def results(folder: Path, content: dict[str, object], config: str) -> Path:
    """A run's folder that was not trained."""
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content))
    (folder / "config.yaml").write_text(config)
    return folder


def test_run_without_weights_says_what_to_export(refuses: Refuses, tmp_path: Path) -> None:
    fixed = results(tmp_path / "fixed", {"fixed_answer": "no", "metrics": {}}, "task: a/b\n")
    message = ".*fixed was not trained: every example is answered 'no'; there are no weights.*"
    refuses(message, *hf(fixed, tmp_path / "out"))
    other = results(tmp_path / "other", {"encoder": "runs/x", "metrics": {}}, "task: a/b\n")
    message = ".*other has no weights: it predicted with those of runs/x; export that run"
    refuses(message, *hf(other, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_seeds_that_have_not_ended_are_named(
    world: World, refuses: Refuses, tmp_path: Path
) -> None:
    run = tmp_path / "seeds"
    run.mkdir()
    (run / "config.yaml").write_text("task: a/b\nseeds: [1, 2]\n")
    message = ".*seeds: expected a finished run, .*; continue the run with --resume, then export it"
    refuses(message, *hf(run, tmp_path / "out"))
    shutil.copytree(world.tuned, run / "seed-1")
    message = ".*continue the run with --resume, or name one of its seeds: .*seeds/seed-1"
    refuses(message, *hf(run, tmp_path / "out"))


def test_damaged_results_are_one_clear_line(world: World, refuses: Refuses, tmp_path: Path) -> None:
    run = shutil.copytree(world.tuned, tmp_path / "run")
    (run / "results.json").write_text("{")
    refuses(".*results.json: expected JSON, got .*", *hf(run, tmp_path / "out"))
