"""GPT and GPT-2 of transformers: the same logits to 1e-5 and the same greedy text, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from finetune.checkpoints.hf import exports_as
from finetune.checkpoints.hub import find_checkpoint, import_hf
from finetune.encoder import Encoder
from finetune.errors import CheckpointError
from finetune.export.hf import export_hf
from finetune.jobs.generation import TextGenerator, load_generator
from finetune.text.tokenizer.tokenizer import Tokenizer
from tests.made.nets import tiny_config

SIZES: dict[str, Any] = {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 20}
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2, other width and activation": {"n_inner": 24, "activation_function": "relu"},
    "gpt2, untied": {"tie_word_embeddings": False},
    "openai-gpt": {},
    "openai-gpt, swish": {"afn": "swish"},
}
KINDS: dict[str, Any] = {
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
    "openai-gpt": (transformers.OpenAIGPTConfig, transformers.OpenAIGPTLMHeadModel),
}


def their_model(case: str, vocab_size: int) -> Any:
    """Theirs with random weights, none of which may be mistaken for another."""
    config, kind = KINDS[case.partition(",")[0]]
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    torch.manual_seed(0)
    model = kind(config(vocab_size=vocab_size, **SIZES, **ends, **CASES[case]))
    for name, parameter in model.named_parameters():
        mean = float(name.endswith("weight") and parameter.dim() == 1)
        nn.init.normal_(parameter, mean=mean, std=0.3)
    return model.eval()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def theirs(case: str, tokenizer: Tokenizer, tmp_path: Path) -> tuple[Any, Path]:
    """A model of theirs, and the folder that they save it in."""
    model, folder = their_model(case, tokenizer.vocab_size), tmp_path / "theirs"
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model, folder


def our_logits(model: TextGenerator, ids: torch.Tensor) -> torch.Tensor:
    hidden = model.module.encoder({"input_ids": ids}).last_hidden_state
    return model.module.head(hidden)


@torch.no_grad()
def test_an_imported_model_has_their_logits_and_their_greedy_text(
    theirs: tuple[Any, Path], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model, folder = theirs
    import_hf(str(folder), tmp_path / "ours")
    ours = load_generator(tmp_path / "ours")
    ids = torch.randint(5, tokenizer.vocab_size, (3, 20))
    torch.testing.assert_close(our_logits(ours, ids), model(ids).logits, atol=1e-5, rtol=1e-5)

    ours._banned = ours._banned[:0]  # theirs has no token that it may not write
    (row,) = ours.generate("the cat sees", max_tokens=9, temperature=0)
    prompt = [tokenizer.cls_token_id, *tokenizer.encode_ids(["the cat sees"])[0]]
    written = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=9,
        do_sample=False,
    )[0, len(prompt) :].tolist()
    end = [tokenizer.sep_token_id] if row["ended"] == "end" else []
    assert [*row["ids"], *end] == written


@torch.no_grad()
def test_what_is_exported_again_has_their_logits_and_names(
    theirs: tuple[Any, Path], case: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model, folder = theirs
    import_hf(str(folder), tmp_path / "ours")
    written = export_hf(tmp_path / "ours", tmp_path / "again")
    kind = KINDS[case.partition(",")[0]][1]
    assert (written.architecture, written.lacking) == (kind.__name__, ())
    again = kind.from_pretrained(tmp_path / "again").eval()
    ids = torch.randint(5, tokenizer.vocab_size, (2, 20))
    torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    settings = json.loads((tmp_path / "again" / "config.json").read_text())
    ends = (settings["bos_token_id"], settings["eos_token_id"])
    assert ends == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_names_without_prefix_and_buffers_of_old_files_are_understood(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "theirs"
    their_model("gpt2", tokenizer.vocab_size).save_pretrained(folder)
    tokenizer.save(folder)
    path = folder / "model.safetensors"
    old = {name.removeprefix("transformer."): one for name, one in load_file(path).items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 20, 20).tril()
    save_file(old, path)
    assert find_checkpoint(folder).head["kind"] == "masked_lm"


def test_what_gpt_2_does_not_compute_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = their_model("gpt2", tokenizer.vocab_size)
    model.config.scale_attn_by_inverse_layer_idx = True
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(CheckpointError, match="scale_attn_by_inverse_layer_idx False, got True"):
        find_checkpoint(tmp_path).encoder()


def test_an_encoder_of_ours_with_the_settings_of_gpt_2_is_exported_as_it() -> None:
    settings: dict[str, Any] = {
        "causal": True,
        "norm_position": "pre",
        "type_vocab_size": 0,
        "embedding_norm": False,
        "lm_transform": False,
    }
    assert exports_as(tiny_config(**settings), {"kind": "masked_lm"}).startswith(
        "export formats: transformers (as gpt2)"
    )
    told = exports_as(tiny_config(causal=True), {"kind": "masked_lm"}, reasons=True)
    assert "norm_position 'pre' only, got 'post'" in told
    wide = tiny_config(**settings | {"norm_position": "post", "intermediate_size": 48})
    told = exports_as(wide, {"kind": "masked_lm"}, reasons=True)
    assert "has intermediate_size 64 only, got 48" in told


def test_a_vocabulary_with_one_special_token_has_it_in_all_roles(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    for name in ("<|endoftext|>", "<unk>"):
        words = {name: 0, "the": 1, "cat": 2}
        backend = Backend(models.WordLevel(words, unk_token=name))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        folder = tmp_path / name.strip("<|>")
        folder.mkdir()
        backend.save(str(folder / "tokenizer.json"))
        tokenizer = Tokenizer.load(folder)
        assert set(tokenizer.special_tokens.values()) == {name}
        from finetune.jobs.generation import text_prefix

        assert text_prefix(tokenizer) == ([0] if name == "<|endoftext|>" else [])


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
def test_neither_norm_nor_transform_are_exported_with_our_own_code(
    causal: bool, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    from finetune.checkpoints.folder import save_checkpoint
    from finetune.training.loop.pretrainer import Pretrainer

    changes = {"embedding_norm": False, "lm_transform": False, "position": "rotary"}
    config = tiny_config(vocab_size=tokenizer.vocab_size, causal=causal, **changes)
    module = Pretrainer(Encoder(config)).eval()
    head = {"kind": "masked_lm"}
    save_checkpoint(tmp_path / "ours", module, tokenizer, encoder_config=config, head=head)
    export_hf(tmp_path / "ours", tmp_path / "out")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "out", trust_remote_code=True
    ).eval()
    ids = torch.randint(5, tokenizer.vocab_size, (2, 9))
    hidden = module.encoder({"input_ids": ids}).last_hidden_state
    torch.testing.assert_close(theirs(ids).logits, module.head(hidden), atol=1e-5, rtol=1e-5)
