"""Damaged vocabularies; that whole ones are read right is in test_tokenizer_files.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import CheckpointError
from finetune.text.tokenizer.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT = "\n".join([*SPECIAL, "a", "b", "##a"]).encode()
VOCABULARY = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "b": 6, "ab": 7}
MERGES = b"#version: 0.2\na b\n"


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as found:
        Tokenizer.load(folder)
    assert "\n" not in str(found.value)
    assert str(found.value).startswith(str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "vocab.txt: expected a token a line, got none; give the file as it was published"),
        (b"\n\r\n\n", "vocab.txt: expected a token a line, got none"),
        (BERT + b"\nb", "vocab.txt: expected each token once, got 'b' in line 7 and line 9"),
        (BERT + b"\n\n\nc", "expected each token once, got '' in line 9 and line 10"),
        (BERT + b"\nc\xff", "vocab.txt: expected UTF-8, got byte 0xff in line 9; give"),
        (BERT.decode().encode("utf-16"), "vocab.txt: expected UTF-8, got byte 0xff in line 1"),
        (b"a\nb", r"vocab.txt: expected the unknown token '\[UNK\]' in it, got 2 tokens without"),
        (BERT.replace(b"[MASK]", b"c"), "the tokenizer has no mask_token: got None"),
        (BERT.replace(b"[CLS]", b"c"), "the tokenizer has no cls_token: got None"),
        (
            BERT + b"\nThe\nof",
            r"vocab.txt has 1 token with capitals, such as 'The'; write {\"do_l",
        ),
    ],
)
def test_damaged_vocab_txt_is_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    refused(tmp_path, message)


def test_capitals_are_no_error_where_the_case_is_stated(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(BERT + b"\nThe\nof")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path).encode_ids(["The"]) == [[8]]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"do_lower_case": "no"}, "config.json: do_lower_case must be true or false, got 'no'"),
        ({"strip_accents": 1}, "config.json: strip_accents must be true or false, got 1"),
        ({"cls_token": 3}, "config.json: expected the name of a token for cls_token, got 3"),
        ({"cls_token": {"content": []}}, r"name of a token for cls_token, got \[\]; name one"),
        ({"cls_token": "<s>"}, "the tokenizer has no cls_token: got '<s>'"),
        ({"unk_token": "<unk>"}, "vocab.txt: expected the unknown token '<unk>' in it, got 8"),
        ({"added_tokens_decoder": {"9": {"content": "c"}}}, "expected id 9 for .* 'c', got 8"),
        (
            {"added_tokens_decoder": {"x": {"content": "c"}}},
            "added_tokens_decoder: expected tokens",
        ),
        (
            {"added_tokens_decoder": {"8": {}}},
            "added_tokens_decoder: expected tokens with their id",
        ),
        ({"added_tokens_decoder": ["c"]}, "added_tokens_decoder: expected tokens with their ids"),
        ({"additional_special_tokens": [3]}, "expected tokens in additional_special_tokens, got"),
        ({"extra_special_tokens": 3}, "expected tokens in extra_special_tokens, got"),
    ],
)
def test_settings_that_do_not_fit_are_an_error(
    stated: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.txt").write_bytes(BERT)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "added_tokens.json: expected JSON, got"),
        (b'{"c": "eight"}', "added_tokens.json: expected tokens with their ids"),
        (b'{"c": 30}', "expected id 30 for the added token 'c', got 8; give the vocabulary"),
    ],
)
def test_damaged_added_tokens_are_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(BERT)
    (tmp_path / "added_tokens.json").write_bytes(content)
    refused(tmp_path, message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", b"", "vocab.json: expected JSON, got"),
        ("vocab.json", b'{"a": 0', "vocab.json: expected JSON, got"),
        ("vocab.json", b'{"\xff": 0}', "vocab.json: expected JSON, got .*utf-8"),
        ("vocab.json", b"[]", "vocab.json: expected a JSON object, got list"),
        ("vocab.json", b"{}", "vocab.json: expected tokens with their ids, got none"),
        ("vocab.json", b'{"a": 0.5}', "vocab.json: expected an id.* for 'a', got 0.5"),
        ("vocab.json", b'{"a": -1}', "vocab.json: expected an id.* for 'a', got -1"),
        ("vocab.json", b'{"a": 1, "b": 1}', "expected each id once, got 1 for 'a' and 'b'"),
        ("merges.txt", None, "expected merges.txt beside vocab.json, got none"),
        ("merges.txt", b"a c\n", "merges.txt: expected tokens of vocab.json, got 'c' in line 1"),
        ("merges.txt", MERGES + b"b a\n", "got 'ba' in line 3, which it does not have"),
        ("merges.txt", b"a b ab", "expected two tokens and a space .* line 1, got 'a b ab'"),
        ("merges.txt", MERGES + b"\xc3(", "merges.txt: expected UTF-8, got byte 0xc3 in line 3"),
    ],
)
def test_damaged_vocab_json_or_merges_are_an_error(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(VOCABULARY))
    (tmp_path / "merges.txt").write_bytes(MERGES)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path, message)


def test_merges_that_begin_with_a_hash_are_no_comments(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({**VOCABULARY, "#": 8, "##": 9}))
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\n# #\n")
    assert Tokenizer.load(tmp_path).encode_ids(["##"]) == [[9]]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"", b"[]", b'{"version": "1.0"}', b'{"model": {"type": "Made"}}']
)
def test_damaged_tokenizer_json_is_an_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(BERT)  # never a silent way round the damaged file
    (tmp_path / "tokenizer.json").write_bytes(content)
    refused(tmp_path, "tokenizer.json: not a readable tokenizer")


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("normalizer", "type", "Precompiled", "not a readable tokenizer"),
        ("model", "unk_token", "<no>", "expected its unknown token '<no>' in the model's vocab"),
    ],
)
def test_tokenizer_json_that_would_fail_later_is_an_error(
    part: str, key: str, value: str, message: str, wordpiece: Tokenizer, tmp_path: Path
) -> None:
    wordpiece.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content[part] |= {key: value, "precompiled_charsmap": "AAAA"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    refused(tmp_path, f"tokenizer.json: .*{message}")
