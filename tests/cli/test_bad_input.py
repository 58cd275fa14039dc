"""What a user can get wrong: one clear line on stderr, exit status 2, and nothing lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from finetune.tracking import opening

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World


def files_in(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# The command line


def test_unknown_command_is_answered_with_the_nearest(refuses: Refuses) -> None:
    refuses("unknown command 'pretrian'; did you mean 'pretrain'\\?", "pretrian")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--wandb", "false"], "--wandb takes no value, got false; give --no-wandb"),
        (["--wandb=True"], "--wandb takes no value, got True; give --wandb"),
        (["--no-wandb", "true"], "--no-wandb takes no value, got true; give --no-wandb"),
    ],
)
def test_value_of_a_switch_is_answered_with_the_switch(
    words: list[str], message: str, refuses: Refuses
) -> None:
    refuses(f"glue: {message}", "glue", *words, "sst2")


def test_unknown_flag_is_answered_with_the_nearest(refuses: Refuses) -> None:
    wanted = "pretrain: unknown option --batch_sise; did you mean '--batch-size'\\?"
    refuses(wanted, "pretrain", "--batch_sise", "3")


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["pretrain", "--out", "x"], "--corpus is missing; give it, or set 'corpus' in .*"),
        (["glue"], "glue: the following arguments are required: task"),
        (["glue", "sst2"], "--encoder is missing; give it, or set 'encoder_from' in .*"),
        (["pretrain", "--seed", "one"], "--seed: expected a whole number, got 'one'"),
        (["pretrain", "--seed"], "pretrain: argument --seed: expected one argument"),
        (["describe"], "describe: the following arguments are required: source"),
        (["bench", "x", "--length", "0"], "bench: argument --length: expected .* got '0'"),
        (["demo", "--sede", "1"], "demo: unknown option --sede; did you mean '--seed'\\?"),
        (["classify", "--text", "x"], "classify: unknown option --text; .* '--text-column'\\?"),
        (["evaluate", "a", "b"], "evaluate: unknown option b; .*"),
    ],
)
def test_wrong_words_are_refused(words: list[str], pattern: str, refuses: Refuses) -> None:
    refuses(pattern, *words)


@pytest.mark.parametrize("name", ["sst3", "SST-3", "glue/sst3"])
def test_unknown_task_is_answered_with_the_nearest(name: str, refuses: Refuses) -> None:
    refuses("unknown GLUE task '.*'; did you mean 'sst2'\\?", "glue", name, "--encoder", "none")


# The settings


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("optimizer: {lerning_rate: 1}", "unknown key 'optimizer.lerning_rate'; .*learning_rate.*"),
        ("learning_rate: 1", "unknown key 'learning_rate'; .*'optimizer.learning_rate', in .*"),
        ("optimizer: {learning_rate: fast}", "optimizer.learning_rate: expected a number, .*"),
        ("seed: [1]", "seed: expected a whole number, got \\[1\\]"),
        ("trainer: 3", "trainer: expected keys with values, got 3"),
        ("- a", "expected keys with values, got .*"),
        ("seed: {", "not readable as YAML: .*"),
        ("seed: 1\nseed: 2", "not readable as YAML: key 'seed' is given twice, .*"),
        (
            "encoder: {hidden_size: 16, num_attention_heads: 3}",
            "encoder: num_attention_heads \\(3\\) must divide hidden_size \\(16\\); .*",
        ),
        ("schedule: {schedule: slow}", "schedule.schedule: expected one of .*"),
        ("length: {max_steps: 1, max_epochs: 1}", "length: expected one of max_steps, .*"),
    ],
)
def test_a_wrong_yaml_is_refused(
    text: str, pattern: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text(text)
    words = ["--config", config, "--corpus", world.corpus, "--out", tmp_path / "run"]
    refuses(f"{config}[: ]+(\\d+: )?{pattern}", "pretrain", *words)
    assert not (tmp_path / "run").exists()


def test_heads_that_do_not_divide_the_hidden_size_are_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = world.pretrain(tmp_path / "run", "--num-attention-heads", 3)
    refuses("num_attention_heads \\(3\\) must divide hidden_size \\(16\\); .*", *words)


@pytest.mark.parametrize("content", [None, b"\x89PNG\r\n\x1a\n\xff\xfe", b"seed: \xff"])
def test_a_config_that_is_no_text_file_is_refused(
    content: bytes | None, tmp_path: Path, refuses: Refuses
) -> None:
    config = tmp_path / "config.yaml"
    if content is None:
        config.mkdir()
    else:
        config.write_bytes(content)
    refuses(f"{config}.*", "pretrain", "--config", config)
    refuses(f"{config}.*", "describe", config)


def test_a_config_that_is_not_there_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    config = tmp_path / "no.yaml"
    refuses(f"{config}: cannot be read: No such file .*", "pretrain", "--config", config)


def test_a_run_without_a_length_is_refused(world: World, tmp_path: Path, refuses: Refuses) -> None:
    words = ["pretrain", "--corpus", world.corpus, "--out", tmp_path / "run"]
    refuses("how long to train is not said: give --max-steps, .*", *words)


def test_a_seed_given_twice_is_refused(world: World, tmp_path: Path, refuses: Refuses) -> None:
    refuses("--seeds .*twice.*", *world.glue(tmp_path / "run", "--seeds", "1,2,1"))


def test_blocks_longer_than_the_positions_are_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    pattern = "max_length \\(64\\) must not exceed .*max_position_embeddings \\(32\\).*"
    refuses(pattern, *world.glue(tmp_path / "run", "--max-length", 64))


def test_a_device_that_is_not_known_is_refused_and_blocks_no_second_try(
    world: World, tmp_path: Path, call: Call
) -> None:
    words = world.pretrain(tmp_path / "run", "--tokenizer", world.tokenizer)
    wrong = call(*words, "--accelerator", "abacus")
    assert wrong.status == 2
    assert wrong.complaint.startswith("finetune: accelerator 'abacus', ")
    assert not (tmp_path / "run").exists()
    assert call(*words, "--max-steps", 2).status == 0


STARTS = ("pretrain", "adapt", "glue", "glue --seeds 1,2", "glue --adapt 1", "glue --dry-run")


def words_of(start: str, world: World, out: Path) -> list[object]:
    command, *more = start.split()
    if command == "pretrain":
        return [*world.pretrain(out)]
    if command == "glue":
        return [*world.glue(out, *more)]
    corpus = ["--corpus", world.corpus, "--max-length", 16, "--max-steps", 2]
    return ["adapt", "--encoder", world.pretrained, *corpus, "--no-wandb", "--out", out]


@pytest.mark.parametrize("start", STARTS)
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    start: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    words = words_of(start, world, tmp_path / "run")
    refuses("accelerator 'gpu', .*", *words, "--accelerator", "gpu", "--cache-dir", tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", STARTS)
def test_a_logger_that_is_not_installed_is_refused_before_anything_is_written(
    start: str, world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "is_installed", lambda name: "tensorboard" not in name)
    words = words_of(start, world, tmp_path / "run")
    pattern = "logger: tensorboard needs a package that is not installed; .*"
    refuses(pattern, *words, "--logger", "tensorboard", "--cache-dir", tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("start", STARTS)
def test_compiled_blocks_without_a_compiler_are_refused_before_anything_is_written(
    start: str, world: World, tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    words = words_of(start, world, tmp_path / "run")
    more = ["--compile", "--accelerator", "cpu", "--cache-dir", tmp_path / "c"]
    refuses(
        "compile: expected a C\\+\\+ compiler, .* none named no-such-compiler; .*", *words, *more
    )
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_are_not_compiled_are_refused_before_a_corpus_is_read(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    words = words_of("pretrain", world, tmp_path / "run")
    more = ["--compile", "--block", "lstm", "--cache-dir", tmp_path / "c"]
    refuses("compile: expected block transformer, got lstm; leave compile out", *words, *more)
    assert not (tmp_path / "run" / "config.yaml").exists()


# The corpus


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("none.txt", None, "{path}: no such corpus file or folder"),
        ("empty.txt", b"", ".*got no.*"),
        ("blank.txt", b" \n\n \n", ".*got no.*"),
        ("short.txt", b"the cat sees the dog\n", "{path}: \\d tokens are less than one block .*"),
        (
            "latin.txt",
            b"the cat\n\nsees caf\xe9 now\n",
            "{path}: byte 17 \\(0xe9\\) is not UTF-8; .*",
        ),
        ("picture.png", b"the cat\n", "{path}: cannot read this kind of file; expected one of .*"),
        ("rows.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "{path}:2: no field 'text'; .*"),
        ("cut.txt.gz", b"\x1f\x8b\x08\x00", "{path}: damaged gzip file: .*"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused(
    name: str,
    content: bytes | None,
    pattern: str,
    world: World,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    corpus, out = tmp_path / name, tmp_path / "run"
    if content is not None:
        corpus.write_bytes(content)
    words = ["--corpus", corpus, "--out", out, "--tokenizer", world.tokenizer]
    words += ["--config", world.pretrain_config]
    refuses(pattern.format(path=corpus), "pretrain", *words)
    assert not out.exists()


def test_a_folder_without_text_is_no_corpus(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "empty").mkdir()
    words = ["tokenizer", "--corpus", tmp_path / "empty", "--out", tmp_path / "out"]
    refuses(f"{tmp_path}/empty: expected files ending in .*, got none", *words)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_a_vocabulary_larger_than_the_corpus_gives_is_refused(
    algorithm: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    pattern = "vocab_size 9000 is more than this corpus can give: .* ask for at most \\d+ .*"
    size = ["--vocab-size", 9000, "--algorithm", algorithm]
    refuses(pattern, *world.pretrain(tmp_path / "run", *size))
    out = ["--out", tmp_path / "tokenizer"]
    refuses(pattern, "tokenizer", "--corpus", world.corpus, *out, *size)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "tokenizer").exists()


def test_a_failed_overwrite_leaves_the_old_run(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    old = tmp_path / "run"
    shutil.copytree(world.pretrained, old)
    before = files_in(old)
    words = world.pretrain(old, "--overwrite", "--corpus", tmp_path / "none.txt")
    refuses(".*no such corpus file or folder", *words)
    assert files_in(old) == before


# The task's files


def broken_task(world: World, tmp_path: Path, train: str) -> Path:
    shutil.copytree(world.data, tmp_path / "data")
    (tmp_path / "data" / "glue_data" / "SST-2" / "train.tsv").write_text(train)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ("sentence\tlabel\na cat\t1\na dog\n", ":3: expected 2 tab-separated columns .* got 1"),
        ("sentence\tlabel\na\tb\t1\n", ":2: expected 2 tab-separated columns .* got 3"),
        ("sentence\tlabel\na cat\tgood\n", ":2: expected a label of 0, 1, got 'good'"),
        ("text\tlabel\na cat\t1\n", ":1: expected a header that names sentence, label; .*"),
        ("sentence\tlabel\n", ": expected .*, got none.*"),
        ("", ": expected a header and rows, got an empty file"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(
    rows: str, pattern: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    data = broken_task(world, tmp_path, rows)
    file = data / "glue_data" / "SST-2" / "train.tsv"
    words = world.glue(tmp_path / "run", "--data", data)
    refuses(f"{file}{pattern}", *words)
    refuses(f"{file}{pattern}", *words, "--seeds", "1,2")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["none", "file"])
def test_a_missing_file_of_a_task_is_named(
    place: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    data = tmp_path / place
    if place == "file":
        data.write_text("no folder\n")
    expected = f"{data}/glue_data/SST-2/train.tsv"
    pattern = f"expected the train file of glue/sst2 at {expected} \\(or .gz\\), got none; .*"
    refuses(pattern, *world.glue(tmp_path / "run", "--data", data))


def test_a_folder_is_no_file_to_train_on(world: World, tmp_path: Path, refuses: Refuses) -> None:
    pattern = f"expected the train file of glue/sst2 at {world.data} .*"
    refuses(pattern, *world.glue(tmp_path / "run", "--train", world.data))


# The encoder


def test_an_encoder_from_random_weights_needs_a_tokenizer(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    refuses(".*name a vocabulary by --tokenizer DIR", *world.glue(tmp_path / "run", encoder="none"))


def test_a_place_without_an_encoder_is_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "empty").mkdir()
    for place, found in ((tmp_path / "no", "no such folder"), (tmp_path / "empty", "neither")):
        refuses(
            f"{place}: expected a run folder .* got {found}; .*",
            *world.glue(tmp_path / "run", encoder=place),
        )
    refuses(
        f"{world.corpus}: expected a run folder .*",
        *world.glue(tmp_path / "run", encoder=world.corpus),
    )


def test_a_folder_of_another_library_is_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 16}))
    pattern = f"{tmp_path}/config.json: expected a model_type that can be imported, got 'llama'.*"
    refuses(pattern, *world.glue(tmp_path / "run", encoder=tmp_path))


def copied_checkpoint(world: World, tmp_path: Path) -> Path:
    copy = tmp_path / "encoder"
    shutil.copytree(world.pretrained / "checkpoints" / "best", copy)
    return copy


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"half"),
        ("model.safetensors", None),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b"\xff\xfe"),
        ("config.json", b'{"format": "finetune"}'),
        ("config.json", b'{"format": "finetune", "encoder": 3, "head": {}, "labels": []}'),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", None),
        ("special_tokens_map.json", b"{"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    name: str, content: bytes | None, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    encoder = copied_checkpoint(world, tmp_path)
    if content is None:
        (encoder / name).unlink()
    else:
        (encoder / name).write_bytes(content)
    refuses(f"{encoder}.*", *world.glue(tmp_path / "run", encoder=encoder))
    assert not (tmp_path / "run").exists()


def test_weights_cut_short_are_refused(world: World, tmp_path: Path, refuses: Refuses) -> None:
    encoder = copied_checkpoint(world, tmp_path)
    weights = (encoder / "model.safetensors").read_bytes()
    (encoder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    pattern = f"{encoder}/model.safetensors: expected weights in safetensors form, got .*"
    refuses(pattern, *world.glue(tmp_path / "run", encoder=encoder))


def test_weights_of_another_shape_are_refused(
    world: World, tmp_path: Path, refuses: Refuses
) -> None:
    encoder = copied_checkpoint(world, tmp_path)
    description = json.loads((encoder / "config.json").read_text())
    description["encoder"]["intermediate_size"] = 48
    (encoder / "config.json").write_text(json.dumps(description))
    (encoder / "checksums.json").unlink()  # as if another program had written it so
    pattern = f"{encoder}: .* should have shape .*; the config does not fit the weights"
    refuses(pattern, *world.glue(tmp_path / "run", encoder=encoder))


@pytest.mark.parametrize("size", [40, 80])
def test_a_tokenizer_that_does_not_fit_the_checkpoint_is_refused(
    size: int, world: World, tmp_path: Path, call: Call, refuses: Refuses
) -> None:
    """Larger, its ids have no rows; smaller, its ids have the rows of other tokens."""
    other = tmp_path / "tokenizer"
    words = ["tokenizer", "--corpus", world.corpus, "--out", other, "--vocab-size", size]
    assert call(*words, "--min-frequency", 1).status == 0
    refuses(f"{other}: .*tokenizer.*", *world.glue(tmp_path / "run", "--tokenizer", other))


@pytest.mark.parametrize("place", ["corpus", "none"])
def test_a_place_without_a_tokenizer_is_refused(
    place: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    there = world.corpus if place == "corpus" else tmp_path / "none"
    words = world.pretrain(tmp_path / "run", "--tokenizer", there)
    refuses(f"{there}: expected a tokenizer .*", *words)
