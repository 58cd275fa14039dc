"""Weights in every form they are stored in, and files that are damaged or worse."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from finetune.checkpoints.hf.files import model_folder, other_modules, read_json, read_tensors
from finetune.errors import CheckpointError

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
WRITE: dict[str, Callable[[Any, Path], None]] = {
    "model.safetensors": save_file,
    "pytorch_model.bin": torch.save,
}


def shard(folder: Path, name: str) -> None:
    """Write the tensors into a file each, and the index that names the files."""
    start, ending = name.split(".")
    places = {}
    for number, (key, tensor) in enumerate(TENSORS.items(), start=1):
        places[key] = f"{start}-0000{number}-of-00002.{ending}"
        WRITE[name]({key: tensor}, folder / places[key])
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{name}.index.json").write_text(json.dumps(index))


def assert_same(found: dict[str, Tensor]) -> None:
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in TENSORS.items())


@pytest.mark.parametrize("name", WRITE)
def test_one_file_and_several_hold_the_same(name: str, tmp_path: Path) -> None:
    WRITE[name](TENSORS, tmp_path / name)
    assert_same(read_tensors(tmp_path))
    (tmp_path / name).unlink()
    shard(tmp_path, name)
    assert_same(read_tensors(tmp_path))


def test_pickled_tensors_of_old_versions_of_torch_are_read(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=False)
    assert_same(read_tensors(tmp_path))


def test_safetensors_come_first(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never looked at")
    assert_same(read_tensors(tmp_path))


def refused(message: str, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_tensors(folder)
    assert "\n" not in str(caught.value)


class Attack:
    """What a pickle may hold: a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(Path.cwd() / "made-by-a-pickle"), "w")


@pytest.mark.parametrize("save", ["pickle", "torch"])
def test_pickle_that_would_run_code_is_refused(
    save: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    if save == "torch":
        torch.save({"a": Attack()}, path)
    else:
        path.write_bytes(pickle.dumps({"a": Attack()}))
    refused("pytorch_model.bin: expected pickled tensors and nothing else, got .*refused", tmp_path)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_refused_pickle_gives_no_warning_besides(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Attack()}, protocol=4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refused("would run code .*refused", tmp_path)
    assert not told


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.ones(1)], "a list"),
        ({"epoch": 3, "model": {"a": torch.ones(1)}}, "a dict of dict, int"),
    ],
)
def test_pickle_that_is_no_state_dict_is_refused(content: Any, found: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    refused(f"expected tensors by name, got {found}; it is not a state dict", tmp_path)


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("left", [0, 40, -5])
def test_file_that_was_cut_short_is_refused(name: str, left: int, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITE[name](TENSORS, path)
    path.write_bytes(path.read_bytes()[:left])
    refused(f"{path}: expected ", tmp_path)


@pytest.mark.parametrize("others", [[], ["tf_model.h5"], ["flax_model.msgpack", "tf_model.h5"]])
def test_folder_without_weights_tells_what_else_is_there(others: list[str], tmp_path: Path) -> None:
    for name in others:
        (tmp_path / name).touch()
    found = ", ".join(sorted(others, reverse=True)) or "none"
    refused(
        f"expected weights in model.safetensors or pytorch_model.bin, got ({found}|none|.*h5)",
        tmp_path,
    )


class TestShards:
    """An index must tell the truth."""

    def test_shard_that_is_missing_is_named(self, tmp_path: Path) -> None:
        shard(tmp_path, "model.safetensors")
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        refused("expected the file model-00002-of-00002.safetensors, got none", tmp_path)

    def test_tensor_that_is_in_no_shard_is_named(self, tmp_path: Path) -> None:
        shard(tmp_path, "model.safetensors")
        path = tmp_path / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"]["c"] = "model-00001-of-00002.safetensors"
        path.write_text(json.dumps(index))
        refused("expected c in model-00001-of-00002.safetensors, got 1 tensors missing", tmp_path)

    def test_file_outside_the_folder_is_not_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "it"
        folder.mkdir()
        save_file(TENSORS, tmp_path / "other.safetensors")
        for name in ("../other.safetensors", str(tmp_path / "other.safetensors")):
            index = {"weight_map": {"a": name}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            refused(f"expected files beside it, got the name '{name}'", folder)

    @pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', "[]", "{"])
    def test_index_that_is_none_is_refused(self, index: str, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
        refused("index.json: expected ", tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "[" * 100_000])
def test_config_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config.json: expected (JSON|a JSON object), got"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "expected JSON"), ("3", "a list of modules, got int"), ("{}", "got dict")],
)
def test_list_of_modules_that_is_none_is_refused(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "modules.json").write_text(content)
    for read in (other_modules, model_folder):
        with pytest.raises(CheckpointError, match=rf"modules.json: .*{message}"):
            read(tmp_path)


@pytest.mark.parametrize("place", ["../other", "0/../../other", "/other"])
def test_module_outside_the_folder_is_not_read(place: str, tmp_path: Path) -> None:
    module = {"path": place, "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(CheckpointError, match=f"inside the folder, got the path '{place}'"):
        model_folder(tmp_path)


def test_module_that_is_missing_is_named(tmp_path: Path) -> None:
    module = {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    pattern = r"config\.json in the module '0_Transformer', got none"
    with pytest.raises(CheckpointError, match=pattern):
        model_folder(tmp_path)
