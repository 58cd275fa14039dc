"""Exported graphs give the model's own numbers, for any batch size, length and padding."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finetune.checkpoints.folder import load_checkpoint, save_checkpoint
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import POSITIONS
from finetune.errors import CheckpointError, ConfigError
from finetune.export import onnx as room
from finetune.export import onnx_graph
from finetune.export.model import HEADS, WholeEnsemble, WholeModel, load_model
from finetune.export.onnx import export_onnx
from finetune.export.onnx_graph import PACKAGES, Session, check_graph
from finetune.export.onnx_score import find_scorer, score_graph, score_graphs
from finetune.heads import ALL_POOLINGS, HeadConfig
from finetune.jobs.prediction import Predictor, load
from finetune.runs.folder import RunFolder
from finetune.text.features.choices import encode_choices
from finetune.text.features.pairs import collate, encode_pairs
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.export.conftest import MAX_LENGTH, TEXTS
from tests.made.texts import learned_tokenizer

LABELS = ("yes", "no", "perhaps")
RUNS = ("classification", "span", "choice", "pretraining")
VARIANTS: dict[str, dict[str, Any]] = {
    # All poolings, positions and scores, and each other choice that changes the graph.
    "concat": {
        "kind": "regression",
        "position": "rotary",
        "norm_position": "pre",
        "first_attention_norm": False,
        "num_hidden_layers": 2,
        "local_attention": 3,
        "global_every": 2,
        "local_rotary_theta": 100.0,
        "hidden_act": "geglu_tanh",
        "causal": True,
        "attention_score": "additive",
    },
    "last": {"kind": "classification", "causal": True, "position": "alibi"},
    "mean": {
        "kind": "multi_label",
        "position": "sinusoidal",
        "norm": "rms",
        "norm_position": "output",
        "attention_score": "bilinear",
        "embedding_size": 8,
        "type_vocab_size": 0,
        "hidden_act": "swiglu",
    },
    "segments-attention": {"kind": "regression", "type_vocab_size": 0},
    # Without segment ids: the texts of a pair are known by the separators.
    "align": {
        "kind": "choice",
        "position": "relative",
        "type_vocab_size": 0,
        "layers": "mix",
        "num_hidden_layers": 2,
        "local_attention": 2,
        "global_every": 2,
        "local_pattern": "strided",
        "global_tokens": "cls",
    },
}
SLOW: dict[str, dict[str, Any]] = {
    "max": {"kind": "choice", "position": "none", "attention_score": "dot", "hidden_act": "relu"},
    "attention": {"kind": "classification", "hidden_act": "silu", "block": "conv"},
    "segments": {"kind": "choice", "type_vocab_size": 0},
    "cls": {"kind": "regression", "attention_score": "additive", "hidden_act": "gelu_tanh"},
}


@pytest.fixture(scope="module", autouse=True)
def _extra() -> None:
    for package in PACKAGES:
        pytest.importorskip(package, reason="needs the extra: pip install 'finetune[onnx]'")


def make_checkpoint(folder: Path, pooling: str, tokenizer: Tokenizer, **more: Any) -> Path:
    """A checkpoint of random weights, large ones, so that an error shows."""
    kind, layers = more.pop("kind"), more.pop("layers", "last")
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 40, "initializer_range": 0.3}
    config = EncoderConfig(vocab_size=tokenizer.vocab_size, **(sizes | more))
    torch.manual_seed(0)
    encoder = Encoder(config)
    settings = HeadConfig(pooling, layers=layers)
    model = WholeModel(encoder, HEADS[kind](config, settings, len(LABELS)))
    for buffer in model.buffers():  # running statistics that are not those of a fresh layer
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    head = {"kind": kind, "pooling": pooling, "layers": layers}
    labels = () if kind == "regression" else LABELS
    save_checkpoint(folder, model, tokenizer, encoder_config=config, head=head, labels=labels)
    return folder


class Folders:
    """What is exported, once, when a test first asks for it."""

    def __init__(self, runs: dict[str, Path], root: Path) -> None:
        self.places, self.root = dict(runs), root
        self.made: set[str] = set()

    def __getitem__(self, name: str) -> Path:
        if name not in self.made:
            tokenizer = load_checkpoint(self.places["classification"]).tokenizer()
            if name not in self.places:
                more = (VARIANTS | SLOW)[name]
                self.places[name] = make_checkpoint(
                    self.root / "of" / name, name, tokenizer, **more
                )
            int8 = name == "classification"
            export_onnx(self.places[name], self.root / name, int8=int8)
            self.made.add(name)
        return self.root / name


@pytest.fixture(scope="module")
def folders(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(runs, tmp_path_factory.mktemp("onnx"))


@pytest.mark.parametrize(
    "name", [*RUNS, *VARIANTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_outputs_are_the_models_for_any_batch_length_and_padding(
    name: str, folders: Folders
) -> None:
    session = Session(folders[name] / "model.onnx")
    model = load_model(load_checkpoint(folders.places[name]))
    generator = torch.Generator().manual_seed(5)
    options = () if model.options is None else (model.options,)
    for batch, length in ((1, 1), (1, 9), (6, 1), (3, 19), (2, MAX_LENGTH)):
        shape = (batch, *options, length)
        ids = torch.randint(model.encoder.config.vocab_size, shape, generator=generator)
        types = torch.randint(2, shape, generator=generator)
        cut = torch.randint(1, length + 1, shape[:-1], generator=generator)[..., None]
        mask = (torch.arange(length) < cut).long()
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        expected = model(*(given[name] for name in model.inputs))
        found = session({name: tensor.numpy() for name, tensor in given.items()})
        for right, got in zip(expected, found, strict=True):
            np.testing.assert_allclose(got, right.numpy(), rtol=1e-6, atol=1e-4)
        whole = session({**given, "attention_mask": torch.ones_like(ids)})  # type: ignore[dict-item]
        unmasked = model(ids, None, *([types] if "token_type_ids" in model.inputs else []))
        np.testing.assert_allclose(whole[0], unmasked[0].numpy(), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_an_lstm_is_one_node_for_any_length_and_padding(
    causal: bool, runs: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_checkpoint(runs["classification"]).tokenizer()
    variant = {"kind": "classification", "block": "lstm", "causal": causal, "lstm_size": 6}
    folder = make_checkpoint(tmp_path / "run", "attention", tokenizer, **variant)
    export_onnx(folder, tmp_path / "onnx")  # which compares batches of several lengths
    import onnx

    nodes = onnx.load(str(tmp_path / "onnx" / "model.onnx")).graph.node
    assert [node.op_type for node in nodes].count("LSTM") == (1 if causal else 2)


def test_every_pooling_head_and_variant_is_among_those_that_are_checked() -> None:
    chosen = [*VARIANTS.values(), *SLOW.values()]
    assert {*VARIANTS, *SLOW} == set(ALL_POOLINGS)
    assert {each.get("position", "learned") for each in chosen} == set(POSITIONS)
    assert {*(each["kind"] for each in chosen), *RUNS} >= set(HEADS)


def test_inputs_and_outputs_have_the_names_and_axes_that_others_expect(folders: Folders) -> None:
    def axes(name: str) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        config = json.loads((folders[name] / "config.json").read_text())
        return config["inputs"], config["outputs"]

    one, options = ["batch", "length"], ["batch", 3, "length"]
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    assert axes("classification") == (dict.fromkeys(inputs, one), {"logits": ["batch", 2]})
    assert axes("mean") == (dict.fromkeys(inputs[:2], one), {"logits": ["batch", 3]})
    assert axes("concat")[1] == {"logits": ["batch"]}
    assert axes("span")[1] == {"start_logits": one, "end_logits": one}
    assert axes("choice") == (dict.fromkeys(inputs, options), {"logits": ["batch", 3]})
    assert axes("pretraining")[1] == {"logits": ["batch", "length", 60]}


@pytest.mark.parametrize("name", ["classification", "span", "choice"])
def test_graph_scores_what_the_run_scored(
    name: str, folders: Folders, runs: dict[str, Path]
) -> None:
    scorer, split = find_scorer(runs[name] / "checkpoints" / "best", None)
    scores = score_graph(scorer, Session(folders[name] / "model.onnx"), split)
    assert scores == pytest.approx(RunFolder(runs[name]).read_results()["metrics"], abs=1e-9)


def test_what_8_bits_cost_is_measured_and_written_down(
    folders: Folders, runs: dict[str, Path]
) -> None:
    config = json.loads((folders["classification"] / "config.json").read_text())
    told, own = config["scores"], RunFolder(runs["classification"]).read_results()["metrics"]
    assert config["files"] == ["model.int8.onnx", "model.onnx"]
    assert told["split"] == "validation"
    assert told["examples"] == 16
    assert told["fp32"] == pytest.approx(own)
    assert told["int8"].keys() == told["lost"].keys() == own.keys()
    for metric, value in told["lost"].items():
        assert value == pytest.approx(told["fp32"][metric] - told["int8"][metric])
        assert abs(value) < 0.2
    card = (folders["classification"] / "README.md").read_text()
    assert f"{told['int8']['accuracy']:.4f} in 8 bits" in card


def test_where_the_data_are_gone_a_line_says_so(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["classification"], run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("validation-yes-no.csv", "gone-yes-no.csv"))
    assert score_graphs(run / "checkpoints" / "best", run / "a.onnx", run / "b.onnx") is None
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("the score of int8 was not measured: ")
    assert "gone-yes-no.csv" in said[0]


@pytest.mark.parametrize("name", [*RUNS, *VARIANTS])
def test_example_runs_without_us(name: str, folders: Folders, runs: dict[str, Path]) -> None:
    example = folders[name] / "example.py"
    assert "finetune" not in example.read_text()
    assert "torch" not in example.read_text()
    words = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folders.root, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if name == "classification":
        with warnings.catch_warnings():  # capitals are unknown to the made tokenizer
            warnings.filterwarnings("ignore", message=r".*mostly \[UNK\]")
            answers = load(runs[name]).predict(["A text.", "Another one."])
        assert done.stdout.strip() == str([answer["prediction"] for answer in answers])
    elif name == "span":
        assert done.stdout.strip() in "A text about the one who wrote it."
    elif name == "choice":
        assert done.stdout.strip() in "ABC"
    elif name == "concat":
        assert len(json.loads(done.stdout)) == 2
    assert done.stdout


def test_tokenizer_gives_the_features_of_the_run(folders: Folders) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(folders["classification"] / "tokenizer.json"))
    ours = load_checkpoint(folders.places["classification"]).tokenizer()
    firsts, long = [*TEXTS, TEXTS[0] * 9, "a", "a"], TEXTS[1] * 9
    seconds = [*reversed(TEXTS), long, long, "the"]
    for given, features in (
        (firsts, encode_pairs(ours, firsts, None, MAX_LENGTH)),
        (list(zip(firsts, seconds, strict=True)), encode_pairs(ours, firsts, seconds, MAX_LENGTH)),
    ):
        batch = collate(features, range(len(features)), ours.pad_token_id)
        encoded = backend.encode_batch(given)
        assert batch["input_ids"].tolist() == [each.ids for each in encoded]
        assert batch["token_type_ids"].tolist() == [each.type_ids for each in encoded]
        lengths = [len(each.input_ids) for each in features]
        assert lengths == [sum(each.attention_mask) for each in encoded]


def test_tokenizer_of_a_choice_cuts_the_passage_alone(folders: Folders) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(folders["choice"] / "tokenizer.json"))
    ours = load_checkpoint(folders.places["choice"]).tokenizer()
    passage, options = TEXTS[0] * 9, ["who sees the cat", "the dog"]
    features = encode_choices(ours, [passage], [options], MAX_LENGTH)
    encoded = backend.encode_batch([(passage, option) for option in options])
    assert [list(each.input_ids) for each in features] == [each.ids for each in encoded]


def test_other_weights_than_the_graphs_are_an_error(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = folders["classification"] / "model.onnx"
    model = load_model(load_checkpoint(folders.places["classification"]))
    model.head.layers[-1].bias.add_(2e-4)  # type: ignore[union-attr, index]
    with pytest.raises(
        CheckpointError, match=r"the graph's logits differ by 0\.0002 from .* of shape \(1, 1\), ex"
    ):
        check_graph(model, Session(graph), MAX_LENGTH)
    monkeypatch.setattr(room, "write_graph", lambda model, path: shutil.copy(graph, path))
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    with pytest.raises(CheckpointError, match="nothing was written"):
        export_onnx(folders.places["seeds"], out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def test_what_torch_cannot_record_is_one_line_and_writes_nothing(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such operator\nand many lines more")

    monkeypatch.setattr(onnx_graph.torch.export, "export", fail)
    with pytest.raises(CheckpointError) as error:
        export_onnx(runs["classification"], tmp_path / "out")
    assert "cannot trace this encoder (no such operator); " in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_missing_package_is_told_with_its_extra(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "is_installed", lambda name: False)
    with pytest.raises(
        ConfigError, match=r"needs the package onnx, which is not installed; run pip install 'fine"
    ):
        export_onnx(runs["classification"], tmp_path / "out")


def test_head_of_an_unknown_kind_is_an_error(
    runs: dict[str, Path], tmp_path: Path, folders: Folders
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["classification"] / "checkpoints" / "best", run)
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"classification"', '"clasification"'))
    (run / "checksums.json").unlink()  # it would be refused as damaged
    with pytest.raises(
        CheckpointError, match="got the kind 'clasification'; did you mean 'classification'"
    ):
        export_onnx(run, tmp_path / "out")


@pytest.mark.slow
def test_encoder_alone_gives_hidden_states_and_large_weights_lie_beside_the_graph(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(runs["pretraining"])
    encoder = WholeModel(checkpoint.encoder(), None)
    place = tmp_path / "encoder"
    config, tokenizer = checkpoint.encoder_config, checkpoint.tokenizer()
    save_checkpoint(place, encoder, tokenizer, encoder_config=config, head={})
    monkeypatch.setattr(onnx_graph, "ONE_FILE_BYTES", 0)
    out = tmp_path / "out"
    assert export_onnx(place, out, int8=True).scores is None
    told = json.loads((out / "config.json").read_text())
    assert told["outputs"] == {"last_hidden_state": ["batch", "length", 16]}
    names = {path.name for path in out.iterdir()}
    assert {"model.onnx", "model.onnx.data", "model.int8.onnx", "model.int8.onnx.data"} <= names
    moved = out.rename(tmp_path / "moved")
    subprocess.run([sys.executable, str(moved / "example.py")], check=True, capture_output=True)


@pytest.fixture(scope="module")
def graph(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of both seeds of a run together."""
    out: Path = tmp_path_factory.mktemp("ensemble") / "out"
    assert export_onnx(runs["seeds"], out, ensemble=True).agreement.batches == 10
    return out


class TestEnsemble:
    """All seeds of a run in one graph."""

    def test_probabilities_are_the_means_of_the_seeds(
        self, graph: Path, runs: dict[str, Path]
    ) -> None:
        model = load(runs["seeds"], ensemble=True)
        assert isinstance(model, Predictor)
        session = Session(graph / "model.onnx")
        for text in TEXTS:
            (row,) = model.predict([text])
            (feature,) = model.task.features(
                [model.task.example({"text": text}, "here", 0)],
                model.tokenizer,
                model.max_length,
                training=False,
            )
            ids = np.array([feature.input_ids])
            given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            (logits,) = session(given | {"token_type_ids": np.zeros_like(ids)})
            shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
            assert shares == pytest.approx([*row["probabilities"].values()], abs=1e-5)

    def test_card_and_config_say_so(self, graph: Path) -> None:
        card = (graph / "README.md").read_text()
        assert "average of the calibrated probabilities of the models of the seeds 1, 2" in card
        assert "model-index" not in card
        assert "temperature" not in json.loads((graph / "config.json").read_text())["decision"]

    @pytest.mark.parametrize("kind", ["span", "regression"])
    def test_scores_and_numbers_are_averaged(self, kind: str, tmp_path: Path) -> None:
        made = []
        for seed in (0, 1):
            place = make_checkpoint(tmp_path / str(seed), "cls", learned_tokenizer(), kind=kind)
            model = load_model(load_checkpoint(place))
            torch.manual_seed(seed)
            for parameter in model.parameters():
                parameter.copy_(parameter + 0.1 * torch.randn_like(parameter))
            made.append(model)
        ids = torch.randint(60, (3, 7), generator=torch.Generator().manual_seed(0))
        given = (ids, torch.ones_like(ids), torch.zeros_like(ids))
        whole = WholeEnsemble(made)(*given)
        for mean, each in zip(whole, zip(*(one(*given) for one in made), strict=True), strict=True):
            torch.testing.assert_close(mean, torch.stack(each).mean(dim=0))

    def test_one_seed_is_refused(self, runs: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="needs a run of several seeds, got one seed"):
            export_onnx(runs["classification"], tmp_path / "out", ensemble=True)
