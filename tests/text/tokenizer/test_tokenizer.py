from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune.errors import CheckpointError, DataError
from finetune.text.tokenizer.tokenizer import Tokenizer

NAMED = "[MASK] and [SEP]and [PAD] [CLS][UNK] written in the text"
ODD_TEXTS = [
    NAMED,
    "Hello world, don't!",
    "naïve café ÀÉÎ",
    "日本語 text 漢字",
    "😀 emoji 👩‍👩‍👧 family 🇫🇷",
    "a\u0301 combining \u200b zero width \u00ad soft hyphen",
    "nul \x00 tab \t vertical \x0b unit \x1f next line \x85 done",
    "tabs\tand\nnew  lines \r\n",
    "ΑΣ ΌΣΟΣ İstanbul ß ﬁ",
    "x" * 150,
    "",
    "   ",
    "\ufffd \ufeff",
]


def load_with_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def assert_agree(ours: Tokenizer, theirs: Any, text: str) -> None:
    expected = theirs(
        text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True
    )
    found = ours.encode_batch([text])[0]
    assert found.ids == expected["input_ids"]
    assert found.offsets == [tuple(pair) for pair in expected["offset_mapping"]]
    assert ours.encode_ids([text])[0] == expected["input_ids"]
    assert ours.decode(found.ids) == theirs.decode(found.ids, skip_special_tokens=True)


@pytest.fixture(scope="session")
def saved(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="session")
def theirs(saved: Path) -> Any:
    return load_with_transformers(saved)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_transformers_reads_what_we_save_and_agrees(
    tokenizer: Tokenizer, theirs: Any, text: str
) -> None:
    assert_agree(tokenizer, theirs, text)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=60))
def test_transformers_agrees_on_any_text(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    assert_agree(tokenizer, theirs, text)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_texts_are_split_alike_before_the_names_of_special_tokens_are_hidden(
    tokenizer: Tokenizer, text: str
) -> None:
    """The tokenizer that hides them is made for the first text that contains one, or a word that
    is unknown: that takes 0.1 s."""
    fresh: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
    assert tokenizer._reader  # made here, if it was not
    expected = tokenizer.encode_batch([text])
    assert fresh.encode_batch([text]) == expected
    assert fresh.encode_ids([text]) == [expected[0].ids]
    special = {tokenizer.backend.token_to_id(name) for name in tokenizer.special_tokens.values()}
    hides = "_reader" in fresh.__dict__
    assert hides == (text == NAMED or not special.isdisjoint(expected[0].ids))


def test_mask_is_read_where_it_is_asked_for_and_nothing_else(tokenizer: Tokenizer) -> None:
    masked = tokenizer.reading_masks().encode_batch([NAMED])[0]
    plain = tokenizer.encode_batch([NAMED])[0]
    assert masked.ids[0] == tokenizer.mask_token_id
    assert masked.ids.count(tokenizer.mask_token_id) == 1
    assert masked.offsets[0] == (0, 6)
    behind = [one for one, (start, _) in zip(plain.ids, plain.offsets, strict=True) if start > 5]
    assert masked.ids[1:] == behind
    assert not (tokenizer.special_ids - {tokenizer.unk_token_id}) & {*plain.ids}


def test_added_tokens_without_a_role_are_found_in_a_text(tokenizer: Tokenizer) -> None:
    backend = copy.deepcopy(tokenizer.backend)
    backend.add_special_tokens(["[NEW]"])
    ids = Tokenizer(backend, tokenizer.special_tokens).encode_ids(["a [NEW] [SEP]"])[0]
    assert backend.token_to_id("[NEW]") in ids
    assert tokenizer.sep_token_id not in ids


def test_transformers_sees_the_same_special_tokens(tokenizer: Tokenizer, theirs: Any) -> None:
    for role, name in tokenizer.special_tokens.items():
        assert getattr(theirs, role) == name
        assert getattr(theirs, f"{role}_id") == getattr(tokenizer, f"{role}_id")
    assert set(theirs.all_special_ids) == tokenizer.special_ids
    assert len(theirs) == tokenizer.vocab_size


def test_transformers_reads_a_folder_that_also_holds_a_config_of_our_own(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 16, "vocab_size": 320}))
    assert_agree(tokenizer, load_with_transformers(tmp_path), ODD_TEXTS[0])


def test_saved_tokenizer_loads_as_the_same(tokenizer: Tokenizer, saved: Path) -> None:
    loaded = Tokenizer.load(saved)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.encode_batch(ODD_TEXTS) == tokenizer.encode_batch(ODD_TEXTS)


def test_saving_twice_writes_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    Tokenizer.load(saved).save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / name).read_bytes() == (saved / name).read_bytes()


def test_tokenizer_survives_pickling(tokenizer: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode_batch(ODD_TEXTS) == tokenizer.encode_batch(ODD_TEXTS)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_published_bert_tokenizer_agrees_with_transformers(minilm: Path, text: str) -> None:
    assert_agree(Tokenizer.load(minilm), load_with_transformers(minilm), text)


def test_published_bert_tokenizer_has_its_own_special_ids(minilm: Path) -> None:
    ours = Tokenizer.load(minilm)
    assert ours.vocab_size == 30522
    assert (ours.cls_token_id, ours.sep_token_id, ours.mask_token_id) == (101, 102, 103)
    assert (ours.pad_token_id, ours.unk_token_id) == (0, 100)
    assert ours.special_ids == {0, 100, 101, 102, 103}


def test_published_tokenizer_neither_truncates_nor_pads(minilm: Path) -> None:
    # Its tokenizer.json asks for both, with a length of 128.
    long, short = Tokenizer.load(minilm).encode_ids(["word " * 300, "word"])
    assert (len(long), len(short)) == (300, 1)


def test_published_tokenizer_saved_by_us_is_still_the_same(minilm: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(minilm)
    ours.save(tmp_path)
    theirs = load_with_transformers(tmp_path)
    for text in ODD_TEXTS:
        assert_agree(ours, theirs, text)


def test_roles_are_found_under_other_names(roberta: Path) -> None:
    ours = Tokenizer.load(roberta)
    assert (ours.cls_token_id, ours.pad_token_id, ours.sep_token_id) == (0, 1, 2)
    assert (ours.unk_token_id, ours.mask_token_id) == (3, 4)
    assert ours.special_ids == {0, 1, 2, 3, 4}


def test_roles_are_found_without_any_file_that_names_them(roberta: Path) -> None:
    (roberta / "special_tokens_map.json").unlink()
    (roberta / "tokenizer_config.json").unlink()
    assert Tokenizer.load(roberta).mask_token_id == 4


def test_template_is_the_tokenizers_own(tokenizer: Tokenizer, roberta: Path) -> None:
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert tokenizer.template(pair=False)[:3] == ([cls], [], [sep])
    assert tokenizer.template(pair=True) == ([cls], [sep], [sep], 1)
    assert Tokenizer.load(roberta).template(pair=True) == ([0], [2, 2], [2], 0)


def test_template_is_berts_where_the_tokenizer_has_none(roberta: Path) -> None:
    content = json.loads((roberta / "tokenizer.json").read_text())
    (roberta / "tokenizer.json").write_text(json.dumps({**content, "post_processor": None}))
    ours = Tokenizer.load(roberta)
    assert ours.template(pair=False)[:3] == ([0], [], [2])
    assert ours.template(pair=True) == ([0], [2], [2], 1)


def test_word_ids_rise_by_word(wordpiece: Tokenizer) -> None:
    encoding = wordpiece.encode_batch(["bafilu, mar"])[0]
    assert encoding.word_ids[0] == 0
    assert sorted(set(encoding.word_ids)) == [0, 1, 2]  # bafilu / , / mar
    assert encoding.word_ids == sorted(encoding.word_ids)


def test_words_are_told_by_spaces_where_the_tokenizer_has_no_words(roberta: Path) -> None:
    content = json.loads((roberta / "tokenizer.json").read_text())
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "Ġ"}
    changed = {**content, "pre_tokenizer": None, "normalizer": spaces}
    (roberta / "tokenizer.json").write_text(json.dumps(changed))
    encoding = Tokenizer.load(roberta).encode_batch(["some text"])[0]
    by_word = {text: [] for text in range(2)}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        by_word[word].append("some text"[start:end])
    assert ["".join(tokens).strip() for tokens in by_word.values()] == ["some", "text"]


def test_fingerprint_follows_behaviour(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "padding": padding}))
    assert Tokenizer.load(tmp_path).fingerprint == wordpiece.fingerprint
    content["normalizer"]["lowercase"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path).fingerprint != wordpiece.fingerprint


def test_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a tokenizer \(tokenizer.json\), got"):
        Tokenizer.load(tmp_path)


def test_damaged_tokenizer_is_an_error(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer.json: not a readable tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(("content", "message"), [("{", "expected JSON, got"), ("[]", "object")])
def test_damaged_role_file_is_an_error(
    wordpiece: Tokenizer, tmp_path: Path, content: str, message: str
) -> None:
    wordpiece.save(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"special_tokens_map.json: .*{message}"):
        Tokenizer.load(tmp_path)


def test_missing_special_token_is_an_error(wordpiece: Tokenizer, tmp_path: Path) -> None:
    wordpiece.save(tmp_path)
    names = {**wordpiece.special_tokens, "mask_token": "<blank>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    with pytest.raises(CheckpointError, match="no mask_token: got '<blank>'"):
        Tokenizer.load(tmp_path)


def test_half_a_surrogate_pair_is_told(tokenizer: Tokenizer) -> None:
    message = r"expected Unicode text, got half a surrogate pair at character 2 of 'a .*; correct"
    for encode in (tokenizer.encode_ids, tokenizer.encode_batch):
        with pytest.raises(DataError, match=message):
            encode(["fine", "a \ud800 b"])
