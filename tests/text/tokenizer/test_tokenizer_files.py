from __future__ import annotations

import copy
import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from finetune.checkpoints.folder import find_tokenizer
from finetune.checkpoints.stored import check_vocabulary
from finetune.errors import CheckpointError
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import tiny_config
from tests.made.official import official_text

TEXTS = [
    "Hello world, don't! bafilu MARNE.",
    "naïve café ÀÉÎ ΑΣ İstanbul ß ﬁ",
    "日本語 text 漢字 ｶﾅ 한국어",
    "😀 emoji 👩‍👩‍👧 family 🇫🇷",
    "a\u0301 e\u0301\u0327 combining \u200b zero \u200d width \u00ad soft hyphen",
    "nul \x00 tab \t vertical \x0b unit \x1f next line \x85 delete \x7f done",
    "and <new> written  [NEW] in the text",
    " tabs\tand\nnew  lines \r\n and\u00a0hard\u3000spaces ",
    "x" * 99 + " " + "x" * 101 + " " + "né" * 2000,
    "2,000 #hashtags ## \"quoted\" ``so'' U.S.A. e-mail@x.org",
    "",
    "   ",
    "\ufffd \ufeff",
]
NAMES = "[MASK] and[SEP]and <mask> and</s>and <s>[CLS] <unk>[UNK] [PAD]<pad>"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OTHER = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def bert_lines() -> list[str]:
    """Special tokens under two sets of names, words, and all letters of the texts but a few."""
    letters = {*"".join((*TEXTS, NAMES)), *"".join(TEXTS).lower()} - set("ｶ한")
    letters = sorted(letter for letter in letters if not letter.isspace())
    words = ["hello", "world", "don", "##filu", "MAR", "mar", "##NE", "text", "漢字"]
    return [*SPECIAL, *OTHER, *letters, *(f"##{letter}" for letter in letters), *words]


def put(folder: Path, **files: Any) -> Path:
    """Write files: `vocab__txt` is vocab.txt; bytes and text as they are, the rest as JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        data = text if isinstance(text, bytes) else text.encode()
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def theirs_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def assert_same_text(
    ours: Tokenizer, theirs: Any, texts: list[str], *, names_are_text: bool = False
) -> None:
    expected = theirs(
        texts,
        add_special_tokens=False,
        return_offsets_mapping=True,
        split_special_tokens=names_are_text,
    )
    found = ours.encode_batch(texts)
    assert [encoding.ids for encoding in found] == expected["input_ids"]
    assert [encoding.offsets for encoding in found] == expected["offset_mapping"]


def framed(ours: Tokenizer, first: str, second: str | None) -> tuple[list[int], list[int]]:
    """Token ids and segments of one text or two, by the template."""
    template = ours.template(pair=second is not None)
    ids = [*template.prefix, *ours.encode_ids([first])[0]]
    if second is None:
        ids += template.suffix
        return ids, [0] * len(ids)
    ids += template.middle
    behind = [*ours.encode_ids([second])[0], *template.suffix]
    return ids + behind, [0] * len(ids) + [template.second_type] * len(behind)


def assert_same(ours: Tokenizer, theirs: Any) -> None:
    assert_same_text(ours, theirs, TEXTS)
    for role in ROLES:
        assert ours.special_tokens[role] == getattr(theirs, role)
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_id")
    marked = {number for number, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.special_ids == marked | set(theirs.all_special_ids)
    assert ours.vocab_size == len(theirs)
    for pair in (("some text", None), ("some text", "more")):
        expected = theirs(*pair, return_token_type_ids=True)
        assert framed(ours, *pair) == (expected["input_ids"], expected["token_type_ids"])


BERT_SETTINGS: dict[str, dict[str, Any]] = {
    "nothing but the class": {},
    "cased": {"do_lower_case": False},
    "accents kept": {"do_lower_case": True, "strip_accents": False},
    "accents dropped alone": {"do_lower_case": False, "strip_accents": True},
    "Chinese in words": {"tokenize_chinese_chars": False},
    "other names": dict(zip(ROLES, OTHER, strict=True)),
    "a token with its spaces": {
        "mask_token": {
            "__type": "AddedToken",
            "content": "[MASK]",
            "lstrip": True,
            "rstrip": False,
            "normalized": False,
        }
    },
    "more special tokens": {"additional_special_tokens": ["[NEW]", "<new>"]},
    "tokens added by number": {
        "added_tokens_decoder": {
            "0": {"content": "[PAD]", "special": True, "normalized": False},
            str(len(bert_lines()) + 1): {"content": "<new>", "special": False, "normalized": True},
            str(len(bert_lines())): {"content": "[NEW]", "special": True, "normalized": False},
        }
    },
}


@pytest.mark.parametrize("kind", ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer"])
@pytest.mark.parametrize("stated", BERT_SETTINGS.values(), ids=BERT_SETTINGS)
def test_vocab_txt_agrees_with_transformers(
    stated: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    stated = {"do_lower_case": True, **stated, "tokenizer_class": kind}
    put(tmp_path, vocab__txt="\n".join(bert_lines()) + "\n", tokenizer_config__json=stated)
    assert_same(Tokenizer.load(tmp_path), theirs_of(tmp_path))


def test_vocab_txt_alone_is_berts(wordpiece: Tokenizer, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    vocabulary = wordpiece.backend.get_vocab(with_added_tokens=True)
    put(tmp_path, vocab__txt="\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    ours = Tokenizer.load(tmp_path)
    assert_same(ours, BertTokenizer.from_pretrained(tmp_path, local_files_only=True))
    texts = [text for text in TEXTS if len(text) < 100]  # ours splits longer words, BERT's does not
    assert ours.encode_batch(texts) == wordpiece.encode_batch(texts)
    assert ours.decode(ours.encode_ids(["bafilu, mar"])[0]) == "bafilu, mar"


def test_vocab_txt_is_the_tokenizer_json_beside_it(minilm: Path, tmp_path: Path) -> None:
    shutil.copy(minilm / "vocab.txt", tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == Tokenizer.load(minilm).fingerprint


def test_vocab_txt_may_have_line_ends_of_windows(tmp_path: Path) -> None:
    lines = [*SPECIAL, "a", "b"]
    unix = Tokenizer.load(put(tmp_path / "unix", vocab__txt="\n".join(lines)))
    windows = Tokenizer.load(put(tmp_path / "windows", vocab__txt="\r\n".join([*lines, "", ""])))
    assert windows.fingerprint == unix.fingerprint


def test_names_and_added_tokens_of_the_old_files_agree(tmp_path: Path) -> None:
    names = {**dict(zip(ROLES, OTHER, strict=True)), "additional_special_tokens": ["[NEW]"]}
    size = len(bert_lines())
    put(
        tmp_path,
        vocab__txt="\n".join(bert_lines()),
        tokenizer_config__json={"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        special_tokens_map__json=names,
        added_tokens__json={"<new>": size + 1, "[NEW]": size},
    )
    assert_same(Tokenizer.load(tmp_path), theirs_of(tmp_path))


@pytest.fixture
def byte_level(roberta: Path, tmp_path: Path) -> Path:
    """RoBERTa's two files, without any other."""
    state = json.loads((roberta / "tokenizer.json").read_text())["model"]
    merges = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in state["merges"])
    return put(tmp_path / "two files", vocab__json=state["vocab"], merges__txt=merges)


ROBERTA_SETTINGS: dict[str, dict[str, Any]] = {
    "nothing but the class": {},
    "prefix space": {"add_prefix_space": True},
    "offsets with spaces": {"trim_offsets": False},
    "a token with its spaces": {
        "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}
    },
}


@pytest.mark.parametrize("stated", ROBERTA_SETTINGS.values(), ids=ROBERTA_SETTINGS)
def test_vocab_and_merges_agree_with_transformers(stated: dict[str, Any], byte_level: Path) -> None:
    put(byte_level, tokenizer_config__json={**stated, "tokenizer_class": "RobertaTokenizer"})
    assert_same(Tokenizer.load(byte_level), theirs_of(byte_level))


def test_vocab_and_merges_need_no_other_file(byte_level: Path) -> None:
    ours = Tokenizer.load(byte_level)
    put(byte_level, config__json={"model_type": "roberta"})
    assert_same(ours, theirs_of(byte_level))
    assert ours.template(pair=True) == ([0], [2, 2], [2], 0)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
@given(text=st.text(max_size=60))
def test_any_text_agrees(text: str, byte_level: Path, tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    if not bert.exists():
        stated = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
        put(bert, vocab__txt="\n".join(bert_lines()), tokenizer_config__json=stated)
        put(byte_level, tokenizer_config__json={"tokenizer_class": "RobertaTokenizer"})
    for folder in (bert, byte_level):
        ours = Tokenizer.load(folder)
        assert_same_text(ours, theirs_of(folder), [text, NAMES], names_are_text=True)


@pytest.mark.parametrize("stated", [{"do_lower_case": False}, {"strip_accents": False}])
def test_stated_settings_overrule_tokenizer_json(
    stated: dict[str, Any], wordpiece: Tokenizer, tmp_path: Path
) -> None:
    published = copy.deepcopy(wordpiece.backend)
    published.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    Tokenizer(published, wordpiece.special_tokens).save(tmp_path)
    stated = {**wordpiece.special_tokens, "do_lower_case": True, **stated}
    put(tmp_path, tokenizer_config__json={**stated, "tokenizer_class": "BertTokenizer"})
    assert_same(Tokenizer.load(tmp_path), theirs_of(tmp_path))


def test_stated_prefix_space_overrules_tokenizer_json(roberta: Path) -> None:
    stated = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}
    put(roberta, tokenizer_config__json=stated)
    ours = Tokenizer.load(roberta)
    assert_same_text(ours, theirs_of(roberta), TEXTS)
    assert ours.encode_ids(["text"]) == ours.encode_ids([" text"])


@pytest.fixture
def pieces(texts: list[str], tmp_path: Path) -> bytes:
    """A small sentencepiece model with ALBERT's special tokens."""
    library = pytest.importorskip("sentencepiece", reason="needs sentencepiece")
    pytest.importorskip("google.protobuf", reason="needs protobuf")
    model = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(text.lower() for text in texts),
        model_writer=model,
        vocab_size=120,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        minloglevel=2,
    )
    return model.getvalue()


def test_sentencepiece_model_is_converted(pieces: bytes, texts: list[str], tmp_path: Path) -> None:
    import sentencepiece

    stated = {"tokenizer_class": "AlbertTokenizer"}
    put(tmp_path, spiece__model=pieces, tokenizer_config__json=stated)
    ours = Tokenizer.load(tmp_path)
    assert_same(ours, theirs_of(tmp_path))
    reference = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    plain = [text.lower() for text in texts if text.isascii()]
    assert ours.encode_ids(plain) == reference.encode(plain)


def test_sentencepiece_model_does_not_find_its_control_symbols_in_a_text(
    pieces: bytes, tmp_path: Path
) -> None:
    stated = {"tokenizer_class": "AlbertTokenizer"}
    ours = Tokenizer.load(put(tmp_path, spiece__model=pieces, tokenizer_config__json=stated))
    ids = ours.encode_ids([NAMES])[0]
    assert not (ours.special_ids - {ours.unk_token_id}) & {*ids}
    masked = ours.reading_masks().encode_ids([NAMES])[0]
    assert ours.special_ids & {*masked} == {ours.mask_token_id, ours.unk_token_id}


def test_converted_tokenizer_is_the_same_once_saved(pieces: bytes, tmp_path: Path) -> None:
    stated = {"tokenizer_class": "AlbertTokenizer"}
    ours = Tokenizer.load(put(tmp_path, spiece__model=pieces, tokenizer_config__json=stated))
    ours.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == ours.fingerprint
    assert_same_text(ours, theirs_of(tmp_path / "saved"), TEXTS)


def test_class_that_is_not_ours_is_left_to_transformers(tmp_path: Path) -> None:
    lines = [*OTHER, *bert_lines()[10:]]
    put(
        tmp_path,
        vocab__txt="\n".join(lines),
        tokenizer_config__json={"tokenizer_class": "MPNetTokenizer", "unk_token": "<unk>"},
    )
    ours = Tokenizer.load(tmp_path)
    assert_same_text(ours, theirs_of(tmp_path), TEXTS)
    assert ours.template(pair=True)[:3] == ([2], [3, 3], [3])


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as found:
        Tokenizer.load(folder)
    assert "\n" not in str(found.value)
    assert str(found.value).startswith(str(folder))


def test_sentencepiece_model_of_no_class_is_an_error(tmp_path: Path) -> None:
    refused(put(tmp_path, spiece__model=b""), "expected the class of tokenizer that spiece.model")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("spiece.model", "AlbertTokenizer", r"got spiece.model, which cannot \(.+\); make a tok"),
        ("spiece.model", "DebertaV2Tokenizer", "expected one of .*spm.model.*, got spiece.model"),
        ("spiece.model", "BertTokenizer", "expected one of .*vocab.txt.*, got spiece.model"),
        ("spiece.model", "UnknownTokenizer", r"cannot \(.+\); make"),
        ("bpe.codes", "PhobertTokenizer", r"got bpe.codes, which cannot \(.+\); make"),
    ],
)
def test_what_cannot_be_converted_is_an_error(
    name: str, kind: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, tokenizer_config__json={"tokenizer_class": kind})
    (tmp_path / name).write_bytes(b"no model " * 9)
    refused(tmp_path, message)
    assert capfd.readouterr() == ("", "")


def test_a_class_in_the_folder_is_never_run(tmp_path: Path) -> None:
    own = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    refused(put(tmp_path, spiece__model=b"", tokenizer_config__json=own, own__py=code), "cannot")
    assert not (tmp_path / "ran").exists()


def test_tokenizer_of_a_folder_is_found_in_every_form(byte_level: Path, tmp_path: Path) -> None:
    put(tmp_path / "bert", vocab__txt="\n".join([*SPECIAL, "a"]))
    assert find_tokenizer(tmp_path / "bert").vocab_size == 6
    shutil.move(byte_level, tmp_path / "tokenizer")
    assert find_tokenizer(tmp_path).vocab_size == 270


def test_vocabulary_longer_than_the_embedding_is_an_error(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(put(tmp_path, vocab__txt="\n".join([*SPECIAL, "a"])))
    small = tiny_config(vocab_size=5, hidden_size=8)
    with pytest.raises(CheckpointError, match="has 6 tokens but the encoder's embedding has 5"):
        check_vocabulary(tokenizer, small, tmp_path)


def official_sentences() -> Iterator[str]:
    """Ten thousand sentences and paragraphs of four official data sets."""
    columns = {"SST-2/train.tsv": (0, 4000), "CoLA/train.tsv": (3, 2000)}
    for file, (column, count) in columns.items():
        text = official_text(f"glue_data/{file}")
        rows = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
        yield from [row[column] for row in rows][1 : count + 1]
    text = official_text("glue_data/MRPC/msr_paraphrase_train.txt")
    for row in text.splitlines()[1:1001]:
        yield from row.split("\t")[3:5]
    squad = json.loads(official_text("squad/dev-v1.1.json"))["data"]
    paragraphs = [paragraph for article in squad for paragraph in article["paragraphs"]]
    yield from [paragraph["context"] for paragraph in paragraphs][:2000]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    found = list(official_sentences())
    assert len(found) == 10_000
    return found


@pytest.mark.data
@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_ten_thousand_sentences_agree_for_a_published_bert(
    file: str, minilm: Path, sentences: list[str], tmp_path: Path
) -> None:
    shutil.copy(minilm / file, tmp_path)
    ours, theirs = Tokenizer.load(tmp_path), theirs_of(minilm)
    # Its tokenizer.json cuts and pads; that of transformers obeys where it is not told otherwise.
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    assert_same_text(ours, theirs, sentences)


@pytest.mark.data
def test_ten_thousand_sentences_agree_for_a_roberta(sentences: list[str], tmp_path: Path) -> None:
    import tokenizers

    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train_from_iterator(
        sentences[:5000],
        vocab_size=4000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        show_progress=False,
    )
    learner.save_model(str(tmp_path))
    put(tmp_path, config__json={"model_type": "roberta"})
    assert_same_text(Tokenizer.load(tmp_path), theirs_of(tmp_path), sentences)
