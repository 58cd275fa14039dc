"""Bad data files of every family: one line that names file and line or id, exit status 2."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.made.families import Files, race, squad, write_families

if TYPE_CHECKING:
    from tests.made.commands import Call, Refuses
    from tests.made.world import World

Change = Callable[[Any], None]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_families(tmp_path)


def first_question(content: Any) -> Any:
    return content["data"][0]["paragraphs"][0]["qas"][0]


def without_id(content: Any) -> None:
    del first_question(content)["id"]


def doubled_id(content: Any) -> None:
    first_question(content)["id"] = content["data"][0]["paragraphs"][1]["qas"][0]["id"]


def strange_answer(content: Any) -> None:
    first_question(content)["answers"] = [{"text": "zebra", "answer_start": 0}]


def other_shape(content: Any) -> None:
    content["data"] = {"no": "list"}


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (without_id, ".*dev-v1.1.json.*'id'.*"),
        (doubled_id, ".*dev-v1.1.json.*'2-1'.*"),
        (strange_answer, ".*dev-v1.1.json.*'2-0'.*'zebra'.*"),
        (other_shape, ".*dev-v1.1.json.*'data'.*"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_question_is_named(
    change: Change, pattern: str, world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    content = squad(2, 8, impossible=False)
    change(content)
    (files.data / "squad" / "dev-v1.1.json").write_text(json.dumps(content))
    refuses(pattern, *squad_words(world, files, tmp_path))
    assert not (tmp_path / "run").exists()


def squad_words(world: World, files: Files, folder: Path, version: str = "1.1") -> list[object]:
    start = ["--encoder", world.pretrained, "--config", files.span_config, "--data", files.data]
    return ["squad", version, *start, "--out", folder / "run"]


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b'{"version": "1.1", "data": [', ".*dev-v1.1.json:1: .*"),
        (b"", ".*dev-v1.1.json: .*empty.*"),
        ('{"data": []}'.encode("utf-16"), ".*dev-v1.1.json:1: .*UTF-8.*"),
        (json.dumps(squad(2, 3)).encode(), ".*dev-v1.1.json.*2.0.*"),
    ],
    ids=["truncated", "empty", "utf-16", "another version"],
)
def test_a_bad_span_file_is_named(
    content: bytes,
    pattern: str,
    world: World,
    files: Files,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    (files.data / "squad" / "dev-v1.1.json").write_bytes(content)
    refuses(pattern, *squad_words(world, files, tmp_path))


def test_a_withheld_dev_set_cannot_choose_a_checkpoint(
    world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    withheld = files.data / "squad" / "test-v2.0.json"
    words = squad_words(world, files, tmp_path, "2.0")
    refuses(".*test-v2.0.json.*", *words, "--validation", withheld)


def race_archive(path: Path, *members: tuple[str, bytes], **special: Any) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if special:
            member = tarfile.TarInfo(special["name"])
            member.type, member.linkname = special["type"], special["linkname"]
            archive.addfile(member)


def passage(**changes: Any) -> bytes:
    return json.dumps({**race(1, 0, "middle"), **changes}).encode()


GOOD = [(f"RACE/{split}/middle/0.txt", passage()) for split in ("train", "dev")]
INSIDE = "RACE/dev/middle/7.txt"


@pytest.mark.parametrize(
    ("member", "pattern"),
    [
        ((INSIDE, passage(options=[["a", "b"], ["a", "b", "c", "d"]])), f".*{INSIDE}.*"),
        ((INSIDE, passage(answers=["A", "E"])), f'.*{INSIDE}.*"E".*'),
        ((INSIDE, passage(options=[[], []])), f".*{INSIDE}.*"),
        ((INSIDE, passage()[:40]), f".*{INSIDE}.*"),
        ((INSIDE, b'{"article": "x"}'), f".*{INSIDE}.*"),
        (("/etc/passwd", b"x"), ".*/etc/passwd.*"),
        (("RACE/dev/../../x.txt", b"x"), r".*\.\..*"),
    ],
    ids=["count", "letter", "none", "truncated", "no questions", "absolute", "above"],
)
def test_a_bad_passage_or_member_is_named(
    member: tuple[str, bytes],
    pattern: str,
    world: World,
    files: Files,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    race_archive(files.data / "race" / "RACE.tar.gz", *GOOD, member)
    before = sorted(tmp_path.rglob("*"))
    refuses(pattern, *race_words(world, files, tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def race_words(world: World, files: Files, folder: Path) -> list[object]:
    start = ["--encoder", world.pretrained, "--config", files.config, "--data", files.data]
    return ["race", "middle", *start, "--out", folder / "run", "--cache-dir", "/nonexistent"]


def test_a_link_in_an_archive_is_refused(
    world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    link = {"name": INSIDE, "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
    race_archive(files.data / "race" / "RACE.tar.gz", *GOOD, **link)
    refuses(f".*{INSIDE}.*link.*", *race_words(world, files, tmp_path))


def classify_words(world: World, files: Files, folder: Path, *more: object) -> list[object]:
    start = ["--encoder", world.pretrained, "--config", files.config]
    data = ["--train", files.own("train.csv"), "--validation", files.own("validation.csv")]
    return ["classify", *start, *data, "--out", folder / "run", *more]


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("train.csv", "text,lable,kind\nthe cat,yes,a\n", ".*train.csv:1: .*lable.*"),
        ("train.csv", "text,label,label\nthe cat,yes,no\n", ".*train.csv:1: .*label.*"),
        ("train.csv", "", ".*train.csv: .*got none"),
        ("train.csv", "text,label\n", ".*train.csv.*"),
        ("train.csv", 'text,label\n"",yes\n"",no\n', ".*train.csv.*empty.*"),
        ("train.csv", "text,label\nthe cat,yes\na dog,yes\n", ".*train.csv.*'yes'.*"),
        ("train.csv", "text,label\nthe cat,yes\na dog\n", ".*train.csv:3: .*"),
        ("train.csv", 'text,label\n"the cat,yes\n', ".*train.csv:2: .*"),
        ("validation.csv", "text,label\nthe cat,maybe\n", ".*validation.csv:2: .*'maybe'.*"),
    ],
)
def test_a_bad_table_is_named(
    name: str,
    content: str,
    pattern: str,
    world: World,
    files: Files,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    files.own(name).write_text(content)
    refuses(pattern, *classify_words(world, files, tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_table_in_utf_16_is_named(
    world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    files.own("train.csv").write_bytes("text,label\nthe cat,yes\n".encode("utf-16"))
    refuses(".*train.csv:1: .*UTF-8.*", *classify_words(world, files, tmp_path))


@pytest.mark.parametrize("number", ["nan", "inf", "many"])
def test_a_label_that_is_no_number_is_named(
    number: str, world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    files.own("train.csv").write_text(f"text,label\nthe cat,0.5\na dog,{number}\n")
    words = classify_words(world, files, tmp_path, "--kind", "regression")
    refuses(f".*train.csv:3: .*'{number}'.*", *words)


def test_windows_line_ends_a_mark_and_gzip_are_read(
    world: World, files: Files, tmp_path: Path, call: Call
) -> None:
    for name in ("train.csv", "validation.csv"):
        text = "\ufeff" + files.own(name).read_text().replace("\n", "\r\n")
        files.own(f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    data = [f"--{split}={files.own(split + '.csv.gz')}" for split in ("train", "validation")]
    start = ["--encoder", world.pretrained, "--config", files.config]
    assert call("classify", *start, *data, "--out", tmp_path / "run").status == 0


STRANGE = [
    "",
    "   ",
    "\u200f\u05e9\u05dc\u05d5\u05dd",
    "e\u0301 \U0001f600\u200d\U0001f680",
    "the cat " * 12_500,
]


def test_strange_texts_simply_work(world: World, files: Files, tmp_path: Path, call: Call) -> None:
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(STRANGE * 2)]
    for split in ("train", "validation"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        files.own(f"{split}.jsonl").write_text(lines)
    data = [f"--{split}={files.own(split + '.jsonl')}" for split in ("train", "validation")]
    start = ["--encoder", world.pretrained, "--config", files.config]
    run = tmp_path / "run"
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in STRANGE))
    with warnings.catch_warnings(record=True, action="always") as told:
        trained = call("classify", *start, *data, "--out", run)
        outcome = call("predict", run, "--input", source)
    assert trained.status == outcome.status == 0
    assert "empty texts: 4" in trained.err
    assert [str(one.message)[:47] for one in told] == [
        "train: 4 of 10 texts (40%) are mostly [UNK] to ",
        "validation: 4 of 10 texts (40%) are mostly [UNK",
        "2 of 5 texts have no visible character",
        "2 of 5 texts (40%) are mostly [UNK] to this tok",
    ]
    assert len(outcome.out.splitlines()) == len(STRANGE)


def test_strange_contexts_simply_work(
    world: World, files: Files, tmp_path: Path, call: Call
) -> None:
    run = tmp_path / "run"
    assert call(*squad_words(world, files, tmp_path, "2.0")).status == 0
    source = tmp_path / "in.jsonl"
    rows = [{"question": "where is the cat", "context": text[:20_000]} for text in STRANGE]
    rows.append({"question": "", "context": "the cat"})
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = call("predict", run, "--input", source)
    assert outcome.status == 0
    for row, line in zip(rows, outcome.out.splitlines(), strict=True):
        answer = json.loads(line)
        if answer["start"] is not None:
            assert row["context"][answer["start"] : answer["end"]] == answer["prediction"]


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        ('{"text": "the cat"}\n{"text": \n', ".*in.jsonl:2: .*"),
        ('{"words": "the cat", "more": "a dog"}\n', ".*in.jsonl:1: .*"),
        ("[1, 2]\n", ".*in.jsonl:1: .*"),
        ("", ".*in.jsonl.*"),
    ],
)
def test_a_bad_row_to_predict_is_named_and_nothing_is_written(
    content: str,
    pattern: str,
    world: World,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(content)
    refuses(pattern, "predict", world.tuned, "--input", source, "--output", target)
    assert not target.exists()


def test_predict_reads_and_writes_streams(
    world: World, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"the cat\na dog sees\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    outcome = call("predict", world.tuned)
    assert outcome.status == 0
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert [answer["id"] for answer in answers] == [0, 1]
    assert all(set(answer["probabilities"]) == {"negative", "positive"} for answer in answers)


def test_predict_refuses_what_it_cannot_use(world: World, tmp_path: Path, refuses: Refuses) -> None:
    same = tmp_path / "x.jsonl"
    same.write_text('{"text": "a"}\n')
    refuses(".*is the input.*", "predict", world.tuned, "--input", same, "--output", same)
    refuses(".*in.csv.*", "predict", world.tuned, "--input", tmp_path / "in.csv")
    refuses(f"{same}:1: expected .*MASK.*", "predict", world.pretrained, "--input", same)
    refuses(f"{tmp_path}/no: expected .*", "predict", tmp_path / "no", "--input", same)
    assert same.read_text() == '{"text": "a"}\n'


def test_a_zip_with_a_wrong_header_is_named(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "glue.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("CoLA.tsv", "id\tprediction\n0\t1\n")
    outcome = call("submit", "--check", path)
    assert outcome.status == 2
    assert "CoLA.tsv:1: " in outcome.err + outcome.out


def test_dataset_and_files_are_not_mixed(
    world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    words = classify_words(world, files, tmp_path, "--dataset", "imdb")
    refuses("--dataset names the data, and so do --train and --validation: .*", *words)


def test_a_split_that_is_needed_is_asked_for(
    world: World, files: Files, tmp_path: Path, refuses: Refuses
) -> None:
    start = ["--encoder", world.pretrained, "--config", files.config, "--out", tmp_path / "run"]
    refuses(".*--train FILE.*", "classify", *start)
    refuses(".*--validation.*", "classify", *start, "--train", files.own("train.csv"))
    shutil.rmtree(files.own(""))
    words = classify_words(world, files, tmp_path)
    refuses(".*train.csv.*", *words)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 44\n"


@pytest.mark.parametrize("name", ["input.txt", "model.safetensors", "config.json", "config.yaml"])
def test_git_lfs_pointer_is_called_that(
    name: str, world: World, tmp_path: Path, refuses: Refuses
) -> None:
    run, source = tmp_path / "run", tmp_path / "input.txt"
    shutil.copytree(world.tuned, run)
    source.write_text("a dog\n")
    place = {"input.txt": source, "config.yaml": run / "config.yaml"}
    (place.get(name) or run / "checkpoints" / "best" / name).write_text(POINTER)
    refuses(f".*{name}: .*got a git-lfs pointer.*", "predict", run, "--input", source)
