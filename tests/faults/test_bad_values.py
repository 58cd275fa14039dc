"""Values that make no sense, in settings and in files of others: a line, status 2, in seconds.

Each command runs in a process of its own that may take a few GiB more than it has. What is tried in
every run is a sample; `slow` tries each number of each setting.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from finetune.runs.settings import PretrainRun
from finetune.settings import fields as settings
from tasks.families import FAMILIES
from tests.faults.cases import World
from tests.faults.harness import Outcome

GIB = 3
"""Memory that a command may take, besides what it has when it begins."""
SECONDS = 60
"""A guard: the commands end within two."""


def attack(world: World, *words: object) -> Outcome:
    return world.faults.run(*words, seconds=SECONDS, gib=GIB)


def is_refused(outcome: Outcome, *parts: str) -> None:
    """Whether a command ended with status 2 and a line that holds all of these."""
    assert outcome.status == 2, (outcome.status, outcome.err[-3000:])
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("finetune: ")
    assert len(outcome.err) < 2200
    assert outcome.err.rstrip("\n").isprintable(), outcome.err
    for part in parts:
        assert part in outcome.err, (part, outcome.err)


# Settings

LARGE = ["1000000000", str(2**63), str(2**64), "1e308", "9" * 5000]
VALUES = ["-1", "0", *LARGE, "nan", "inf", "", "a\0b", "caf\udce9", "\x1b[2J"]


@pytest.mark.parametrize(
    ("command", "words", "parts"),
    [
        ("pretrain", ["--seed=-1"], ["seed must be a whole number from 0 to", "got -1"]),
        ("gradual", [f"--seed={2**64}"], ["seed must be", str(2**64)]),
        ("seeds", ["--seeds=1,-2"], ["seeds must be a list", "[1, -2]"]),
        ("pretrain", ["--num-hidden-layers", 10**9], ["num_hidden_layers", "10,000"]),
        ("pretrain", ["--num-attention-heads", 10**9], ["num_attention_heads", "100,000"]),
        ("pretrain", ["--vocab-size", 10**9], ["vocab_size", "10,000,000"]),
        ("pretrain", ["--learning-rate", "inf"], ["learning_rate", "got inf; try 1e-3"]),
        ("pretrain", ["--learning-rate", "nan"], ["--learning-rate: expected a number"]),
        ("gradual", ["--gradient-clip=-1"], ["gradient_clip", "from 0", "got -1.0"]),
        ("gradual", ["--max-length", 10**9], ["max_length", "got 1000000000"]),
        ("pretrain", ["--tokenizer", "a\0b"], ["expected words in UTF-8", r"'a\x00b'"]),
        ("pretrain", ["--corpus", "caf\udce9"], ["expected words in UTF-8", r"'caf\udce9'"]),
        ("pretrain", ["--corpus", "\x1b[2J\u202e"], [r"\u001b[2J\u202e: no such corpus"]),
        ("pretrain", ["--tokenizer", "x" * 5000], ["x" * 200 + "… File name too long"]),
        ("pretrain", ["--seed", "9" * 5000], ["--seed: expected a whole number, got '999", "…'"]),
        ("pretrain", ["--num-hidden-layers", 9999, "--hidden-size", 99_998], ["GiB"]),
        ("pretrain", ["--intermediate-size", 10_000_000, "--hidden-size", 2000], ["GiB"]),
    ],
)
def test_a_senseless_setting_is_refused(
    world: World, command: str, words: list[object], parts: list[str]
) -> None:
    outcome = attack(world, *world.words(command), *words)
    is_refused(outcome, *parts)
    assert not (world.faults.root / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--seconds", "inf"],
        ["bench", "--seconds", "nan"],
        ["bench", "--batch-size", "9" * 5000],
        ["predict", "run", "--batch-size", "9" * 30],
        ["predict", "run", "--top-k", "-1"],
        ["inspect", "attention", "run", "text", "--layer", "9" * 30],
        ["inspect", "probe", "run", "--seeds", "1,-2"],
        ["inspect", "probe", "run", "--limit", "²"],
        ["demo", "--seed", "-1"],
        ["demo", "--seed", str(2**64)],
        ["submit", "--check", "/dev/zero"],
        ["describe", "/dev/zero"],
        ["runs", "\x1b[2J"],
        ["frobnicate\x1b[2J"],
        ["glue", "\u202e", "--encoder", "none"],
    ],
    ids=lambda words: " ".join(words)[:30].encode("unicode_escape").decode(),
)
def test_a_senseless_option_is_refused(world: World, words: list[str]) -> None:
    is_refused(attack(world, *words))


def flags_of(cls: type[Any]) -> list[str]:
    return [each.flag for each in settings._settings(cls) if each.flag and each.type is not bool]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["pretrain", *FAMILIES])
def test_no_value_of_any_flag_is_an_error_of_ours(world: World, command: str) -> None:
    cls = PretrainRun if command == "pretrain" else FAMILIES[command].settings()
    start = [command, *(FAMILIES[command].names()[:1] if command in FAMILIES else [])]
    start += ["--corpus", "x"] if command == "pretrain" else ["--encoder", "none"]
    for flag in flags_of(cls):
        for value in VALUES:
            words = [*start, "--out", "run", f"{flag}={value}", "--print-config"]
            outcome = attack(world, *words)
            if outcome.status:
                is_refused(outcome)


# Memory


def test_an_encoder_that_cannot_fit_is_refused_before_it_is_made(world: World) -> None:
    huge = ["--hidden-size", 65536, "--num-attention-heads", 64, "--num-hidden-layers", 500]
    outcome = attack(world, *world.words("pretrain"), *huge)
    is_refused(outcome, "training this encoder of ", "GiB; this machine has ", "lower vocab_size")


def test_describe_counts_what_no_machine_could_hold(world: World, tmp_path: Path) -> None:
    config = tmp_path / "huge.yaml"
    config.write_text(
        "encoder: {hidden_size: 65536, num_attention_heads: 64, num_hidden_layers: 500}\n"
    )
    outcome = attack(world, "describe", config)
    assert outcome.status == 0, outcome.err
    assert "The weights take 32,769 GiB in float32" in " ".join(outcome.out.split()), outcome.out


def test_a_batch_that_cannot_fit_is_refused_before_it_is_made(world: World) -> None:
    outcome = attack(world, "bench", "--batch-size", 10**8, "--length", 10**4)
    is_refused(outcome, "a step on 100,000,000 sequences", "GiB; this machine has ")


# Checkpoints and folders of Hugging Face

Change = Callable[[Path], object]
NOTHING = object()


def changed(key: str, value: object, *, within: str = "") -> Change:
    """A change of config.json: a field, or one of its section; NOTHING takes it away."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text())
        section = content[within] if within else content
        section[key] = value
        if value is NOTHING:
            del section[key]
        path.write_text(json.dumps(content))

    change.__name__ = f"no {key}" if value is NOTHING else f"{key}={str(value)[:20]}"
    return change


def deep_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def number_of_many_digits(folder: Path) -> None:
    (folder / "config.json").write_text('{"format": "finetune", "encoder": ' + "9" * 5000 + "}")


def tensors(folder: Path, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path = folder / "model.safetensors"
    stored = load_file(path)
    first = next(name for name in sorted(stored) if name.endswith("query.weight"))
    new = {**stored, first: make(stored[first].clone()).contiguous()}
    save_file(new, folder / "new", {"format": "pt"})  # the tensors are those of the mapped file
    (folder / "new").replace(path)


def int8_weights(folder: Path) -> None:
    tensors(folder, lambda each: (each * 100).to(torch.int8))


def float8_weights(folder: Path) -> None:
    tensors(folder, lambda each: each.to(torch.float8_e4m3fn))


def nan_weights(folder: Path) -> None:
    tensors(folder, lambda each: each.fill_(float("nan")))


def transposed_weights(folder: Path) -> None:
    tensors(folder, lambda each: each.reshape(-1))


def header(folder: Path, text: str) -> None:
    raw = text.encode()
    content = len(raw).to_bytes(8, "little") + raw + bytes(64)
    (folder / "model.safetensors").write_bytes(content)


def unknown_dtype(folder: Path) -> None:
    header(folder, '{"a": {"dtype": "F6_E2M3", "shape": [64], "data_offsets": [0, 48]}}')


def huge_shape(folder: Path) -> None:
    header(folder, '{"a": {"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0,8]}}')


def nan_header(folder: Path) -> None:
    header(folder, '{"a": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 8]}}')


def pickle_as_safetensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    torch.save(load_file(path), folder / "pickle")  # the tensors are those of the mapped file
    (folder / "pickle").replace(path)


def tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def id_of_a_hundred_million(folder: Path) -> None:
    tokenizer(folder, lambda content: content["model"]["vocab"].update(zebra=10**8))


def added_id_of_a_billion(folder: Path) -> None:
    added = {"id": 10**9, "content": "zebra", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer(folder, lambda content: content["added_tokens"].append({**added, **flags}))


def panic_on_reading(folder: Path) -> None:
    charsmap = base64.b64encode(bytes(3)).decode()
    kind = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    tokenizer(folder, lambda content: content.update(normalizer=kind))


def panic_on_encoding(folder: Path) -> None:
    kind = {"type": "FixedLength", "length": 0}
    tokenizer(folder, lambda content: content.update(pre_tokenizer=kind))


def template_without_tokens(folder: Path) -> None:
    tokenizer(folder, lambda content: content["post_processor"].update(special_tokens={}))


def foreign_ids_around_a_text(folder: Path) -> None:
    kind = {"type": "BertProcessing", "sep": ["[SEP]", 10**9], "cls": ["[CLS]", 4 * 10**9]}
    tokenizer(folder, lambda content: content.update(post_processor=kind))


CONFIGS: list[tuple[Change, str]] = [
    (changed("num_hidden_layers", 10**9, within="encoder"), "num_hidden_layers must be"),
    (changed("num_hidden_layers", 10_000, within="encoder"), "the sizes of the weights beside it"),
    (changed("vocab_size", 10**7, within="encoder"), "the sizes of the weights beside it"),
    (changed("hidden_size", "16", within="encoder"), "hidden_size must be a whole number"),
    (changed("hidden_size", -16, within="encoder"), "hidden_size must be a whole number"),
    (changed("hidden_size", [16], within="encoder"), "got [16]"),
    (changed("hidden_act", ["gelu"], within="encoder"), "hidden_act must be text"),
    (changed("causal", "no", within="encoder"), "causal must be true or false"),
    (changed("layer_norm_eps", float("nan"), within="encoder"), "layer_norm_eps must be"),
    (changed("rotary_theta", 10**400, within="encoder"), "rotary_theta must be"),
    (changed("\x1b[2J", 1, within="encoder"), r"unknown encoder setting '\u001b[2J'"),
    (changed("encoder", [1]), "expected encoder to be the settings of an encoder"),
    (changed("head", "masked_lm"), "expected head to be the settings of a head"),
    (changed("task", 7), "expected task to be the name of a task"),
    (changed("labels", "ab"), "expected labels to be a list of names"),
    (changed("labels", [1, 2]), "expected labels to be a list of names"),
    (changed("decision", {"threshold": "high"}), "expected decision to be numbers by name"),
    (changed("source", {"family": 3}), "expected source to be texts by name"),
    (changed("encoder", NOTHING), "'encoder'"),
    (deep_config, "config.json: expected JSON"),
    (number_of_many_digits, "config.json: expected JSON"),
]
WEIGHTS: list[tuple[Change, str]] = [
    (int8_weights, "got int8"),
    (float8_weights, "got float8_e4m3fn"),
    (nan_weights, "got NaN or infinity"),
    (transposed_weights, "should have shape"),
    (unknown_dtype, "model.safetensors"),
    (huge_shape, "model.safetensors"),
    (nan_header, "model.safetensors"),
    (pickle_as_safetensors, "model.safetensors: expected weights in safetensors form"),
]
TOKENIZERS: list[tuple[Change, str]] = [
    (id_of_a_hundred_million, "expected ids from 0 on"),
    (added_id_of_a_billion, "expected ids from 0 on"),
    (panic_on_reading, "not a readable tokenizer"),
    (panic_on_encoding, "not a readable tokenizer"),
    (template_without_tokens, "not a readable tokenizer"),
    (foreign_ids_around_a_text, "got 4000000000"),
]


def name_of(value: Any) -> str:
    return getattr(value, "__name__", "")


def a_copy(world: World, folder: Path) -> Path:
    """The pretrained encoder, as another program may have written it: without checksums."""
    shutil.copytree(world.place / "encoder" / "checkpoints" / "best", folder)
    (folder / "checksums.json").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize(("change", "part"), CONFIGS, ids=name_of)
def test_a_foreign_config_is_refused(
    world: World, tmp_path: Path, change: Change, part: str
) -> None:
    folder = a_copy(world, tmp_path / "encoder")
    change(folder)
    is_refused(attack(world, "describe", folder), f"{folder}/config.json", part)


@pytest.mark.parametrize(("change", "part"), [*WEIGHTS, *TOKENIZERS], ids=name_of)
def test_foreign_weights_and_tokenizers_are_refused(
    world: World, tmp_path: Path, change: Change, part: str
) -> None:
    folder = a_copy(world, tmp_path / "encoder")
    change(folder)
    words = world.words("gradual")
    words[words.index("--encoder") + 1] = folder
    is_refused(attack(world, *words), str(folder), part)


@pytest.fixture(scope="module")
def exported(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder as a folder of Hugging Face."""
    folder: Path = tmp_path_factory.mktemp("exported") / "bert"
    outcome = world.faults.run("export", world.place / "encoder", "--format=hf", "--out", folder)
    assert outcome.status == 0, outcome.err
    return folder


def classifier(**fields: object) -> Change:
    """A config.json of a classifier with these fields."""

    def change(folder: Path) -> None:
        changed("architectures", ["BertForSequenceClassification"])(folder)
        for key, value in fields.items():
            changed(key, value)(folder)

    change.__name__ = str(fields)[:30]
    return change


def as_pickle(folder: Path, content: Any) -> Path:
    path = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    torch.save(content, path)
    return path


def packed_pickle(folder: Path) -> None:
    path = as_pickle(folder, load_file(folder / "model.safetensors"))
    with zipfile.ZipFile(path) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def one_number_seen_as_many(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    as_pickle(folder, {name: torch.zeros(1).expand(each.shape) for name, each in stored.items()})


def code_in_a_pickle(folder: Path) -> None:
    as_pickle(folder, {"a": Path("x")})


IMPORTS: list[tuple[Change, str]] = [
    (changed("hidden_size", 10**9), "hidden_size must be"),
    (changed("num_hidden_layers", 10_000), "the sizes of the weights beside it"),
    (changed("hidden_size", "wide"), "hidden_size must be"),
    (changed("vocab_size", -5), "vocab_size must be"),
    (changed("hidden_act", {"a": 1}), "unknown hidden_act"),
    (changed("layer_norm_eps", 10**400), "layer_norm_eps must be"),
    (changed("model_type", ["bert"]), "model_type"),
    (classifier(num_labels=10**9), "num_labels"),
    (classifier(num_labels=-1), "num_labels"),
    (classifier(id2label={"0": "a", "7": "b"}), "id2label"),
    (classifier(id2label={"zero": "a"}), "id2label"),
    (classifier(id2label=["a", "b"]), "id2label"),
    (int8_weights, "got int8"),
    (unknown_dtype, "model.safetensors"),
    (packed_pickle, "compressed member"),
    (one_number_seen_as_many, "tensors that do not store their numbers"),
    (code_in_a_pickle, "would run code"),
    (id_of_a_hundred_million, "expected ids from 0 on"),
    (panic_on_encoding, "not a readable tokenizer"),
]


@pytest.mark.parametrize(("change", "part"), IMPORTS, ids=name_of)
def test_a_foreign_folder_is_refused(
    world: World, exported: Path, tmp_path: Path, change: Change, part: str
) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(exported, folder)
    change(folder)
    is_refused(attack(world, "import-hf", folder, "--out", tmp_path / "out"), str(folder), part)
    assert not (tmp_path / "out").exists()


# Archives and packed files

ZEROS = 8 << 30
"""Bytes of the large member: 8 GiB."""


def race_archive(path: Path, member: tarfile.TarInfo, content: bytes = b"") -> None:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member, io.BytesIO(content))


def claims_eight_gib(path: Path) -> None:
    """A header that tells of 8 GiB, and none of them."""
    member = tarfile.TarInfo("RACE/dev/middle/1.txt")
    member.size = ZEROS
    with gzip.open(path, "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))


def sparse_member(path: Path) -> None:
    """8 GiB in which nothing is written but a block of headers."""
    member = tarfile.TarInfo("RACE/dev/middle/1.txt")
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": member.name,
        "GNU.sparse.realsize": str(ZEROS),
    }
    content = b"1\n0\n1\n".ljust(512, b"\0") + b"x".ljust(512, b"\0")
    member.size = len(content)
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(content))


def header_of_two_gib(path: Path) -> None:
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 2 << 30
    with gzip.open(path, "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))


def hard_link(path: Path) -> None:
    member = tarfile.TarInfo("RACE/dev/middle/1.txt")
    member.type, member.linkname = tarfile.LNKTYPE, "/etc/passwd"
    race_archive(path, member)


def way_out(path: Path) -> None:
    race_archive(path, tarfile.TarInfo("RACE/dev/middle/../../../../x.txt"))


def large_passage(path: Path) -> None:
    member = tarfile.TarInfo("RACE/dev/middle/1.txt")
    member.size = 65 << 20
    race_archive(path, member, bytes(member.size))


@pytest.mark.parametrize(
    "make",
    [claims_eight_gib, sparse_member, header_of_two_gib, hard_link, way_out, large_passage],
)
def test_an_archive_that_would_fill_memory_or_lead_out_is_refused(
    world: World, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (tmp_path / "race").mkdir()
    archive = tmp_path / "race" / "RACE.tar.gz"
    make(archive)
    start = ["--config", world.place / "fit.yaml", "--encoder", world.place / "encoder"]
    words = ["race", "middle", *start, "--data", tmp_path, "--out", tmp_path / "out"]
    is_refused(attack(world, *words), str(archive))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """1.1 GiB of one letter, packed into 1 MB."""
    packed = io.BytesIO()
    part = b"a" * (1 << 24)
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(70):
            file.write(part)
    return packed.getvalue()


@pytest.mark.parametrize("name", ["squad/dev-v1.1.json.gz", "glue_data/CoLA/train.tsv.gz"])
def test_a_packed_file_that_becomes_gigabytes_is_refused(
    world: World, tmp_path: Path, bomb: bytes, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_bytes(bomb)
    shutil.copy(path, path.with_name("train-v1.1.json.gz"))
    start = ["--config", world.place / "fit.yaml", "--encoder", world.place / "encoder"]
    task = ["squad", "1.1"] if "squad" in name else ["glue", "cola"]
    outcome = attack(world, *task, *start, "--data", tmp_path, "--out", tmp_path / "out")
    is_refused(outcome, str(path.parent), "expected at most 1,024 MiB")


def test_a_packed_line_of_gigabytes_is_refused(world: World, tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(bomb)
    words = ["tokenizer", "--corpus", path, "--out", tmp_path / "out"]
    is_refused(attack(world, *words), f"{path}:1: expected a line of at most 1,024 MiB")


# Control characters

EVIL = "\x1b[31mred\x1b[0m \x9b2J\u202egnp.exe"


def test_labels_and_columns_do_not_reach_the_terminal(world: World, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        rows = (world.place / f"{split}.csv").read_text().replace(",y\n", f",{EVIL}\n")
        (tmp_path / f"{split}.csv").write_text(rows)
    words = world.words("gradual")[:-8]
    data = ["--train", tmp_path / "train.csv", "--validation", tmp_path / "validation.csv"]
    words += ["--encoder", world.place / "encoder", *data]
    outcome = attack(world, *words, "--max-epochs", 1, "--out", tmp_path / EVIL)
    assert outcome.status == 0, outcome.err
    for text in (outcome.err, outcome.out):
        assert text.replace("\n", "").isprintable(), text
    assert r"\u001b[31mred" in outcome.err
    results = json.loads((tmp_path / EVIL / "results.json").read_text())
    assert EVIL in results["report"]["per_class"]
    listed = attack(world, "runs", tmp_path)
    assert listed.status == 0
    assert listed.out.replace("\n", "").isprintable(), listed.out
    shown = attack(world, "runs", tmp_path, "--json")
    assert EVIL in shown.out.encode().decode("unicode_escape") or "u001b" in shown.out
    asked = attack(world, *words, "--label-column", EVIL, "--out", tmp_path / "other")
    is_refused(asked, r"\u001b[31mred")


def test_a_long_quotation_is_cut(world: World, tmp_path: Path) -> None:
    table = tmp_path / "train.csv"
    table.write_text(f"text,{'x' * 5000}\n" + "the cat,y\n" * 3)
    words = [*world.words("gradual"), "--train", table, "--label-column", "z" * 5000]
    outcome = attack(world, *words)
    is_refused(outcome, "x" * 200 + "…")
    assert "x" * 201 not in outcome.err


def test_the_fields_of_the_samples_are_there() -> None:
    """The tables above name settings by hand: they must exist."""
    fields = {field.name for field in dataclasses.fields(PretrainRun)}
    assert {"seed", "corpus", "tokenizer"} <= fields
