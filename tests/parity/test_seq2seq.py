"""The encoder-decoder against transformers': BERT with cross-attention, and Marian's positions."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel, GenerationConfig
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from finetune.decoder import DecoderConfig, SearchConfig
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.embeddings import sinusoids
from finetune.heads import HeadConfig, Seq2Seq

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
START, END = 2, 3
NAMES = {
    "embeddings.norm": "embeddings.LayerNorm",
    ".cross_attention.query.": ".crossattention.self.query.",
    ".cross_attention.key.": ".crossattention.self.key.",
    ".cross_attention.value.": ".crossattention.self.value.",
    ".cross_attention.output.": ".crossattention.output.dense.",
    ".cross_attention_norm.": ".crossattention.output.LayerNorm.",
    ".attention.query.": ".attention.self.query.",
    ".attention.key.": ".attention.self.key.",
    ".attention.value.": ".attention.self.value.",
    ".attention.output.": ".attention.output.dense.",
    ".attention_norm.": ".attention.output.LayerNorm.",
    ".feedforward.intermediate.": ".intermediate.dense.",
    ".feedforward.output.": ".output.dense.",
    ".feedforward_norm.": ".output.LayerNorm.",
    "blocks.": "encoder.layer.",
    "output.dense.weight": "cls.predictions.transform.dense.weight",
    "output.dense.bias": "cls.predictions.transform.dense.bias",
    "output.norm": "cls.predictions.transform.LayerNorm",
    "output.bias": "cls.predictions.decoder.bias",
}


def their_name(name: str) -> str:
    if name.startswith("output."):
        start, _, rest = name.partition(".")
        keys = [key for key in NAMES if key.startswith("output.") and name.startswith(key)]
        return f"decoder.{NAMES[keys[0]]}{name[len(keys[0]) :]}"
    for ours, theirs in NAMES.items():
        if not ours.startswith("output."):
            name = name.replace(ours, theirs)
    return f"decoder.bert.{name.removeprefix('decoder.')}"


@pytest.fixture
def pair() -> tuple[EncoderDecoderModel, Encoder, Seq2Seq]:
    """Their model and ours with the same weights."""
    torch.manual_seed(0)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(
        BertConfig(**SIZES), BertConfig(**SIZES)
    )
    theirs = EncoderDecoderModel(config=config).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    ours = EncoderConfig(**SIZES)
    shape = dataclasses.replace(DecoderConfig().shape(ours), type_vocab_size=2)
    search = SearchConfig(beams=1, max_target_length=9)
    encoder = Encoder(ours).eval()
    head = Seq2Seq(ours, HeadConfig(), shape, start=START, end=END, search=search).eval()
    state = theirs.state_dict()
    encoder.load_state_dict(
        {name: state[their_encoder_name(name)] for name in encoder.state_dict()}
    )
    head.load_state_dict({name: state[their_name(name)] for name in head.state_dict()})
    return theirs, encoder, head


def their_encoder_name(name: str) -> str:
    return their_name(name).replace("decoder.bert.", "encoder.")


SOURCES = torch.tensor([[2, 7, 9, 11, 5, 3], [2, 8, 4, 3, 0, 0]])
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
TARGETS = torch.tensor([[2, 30, 31, 32], [2, 40, 41, 42]])


def test_logits_are_those_of_bert_with_cross_attention(
    pair: tuple[EncoderDecoderModel, Encoder, Seq2Seq],
) -> None:
    theirs, encoder, head = pair
    expected = theirs(
        input_ids=SOURCES, attention_mask=MASK.long(), decoder_input_ids=TARGETS
    ).logits
    hidden = encoder({"input_ids": SOURCES, "attention_mask": MASK}).last_hidden_state
    logits = head(hidden, MASK, TARGETS)
    torch.testing.assert_close(logits, expected.flatten(0, 1), atol=1e-5, rtol=1e-5)


def test_greedy_search_writes_what_theirs_writes(
    pair: tuple[EncoderDecoderModel, Encoder, Seq2Seq],
) -> None:
    theirs, encoder, head = pair
    settings = GenerationConfig(
        decoder_start_token_id=START,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        max_new_tokens=9,
        do_sample=False,
        num_beams=1,
    )
    with torch.no_grad():
        expected = theirs.generate(SOURCES, attention_mask=MASK.long(), generation_config=settings)[
            :, 1:
        ]
        hidden = encoder({"input_ids": SOURCES, "attention_mask": MASK}).last_hidden_state
        written = head.search_targets(hidden, MASK).ids
    assert written[:, : expected.shape[1]].tolist() == expected.tolist()


def test_sinusoids_are_those_of_marian() -> None:
    """Marian has all sines before all cosines; here they alternate, as in the paper."""
    theirs = MarianSinusoidalPositionalEmbedding(20, 16)
    theirs.weight = nn.Parameter(theirs.create_weight(), requires_grad=False)
    ours = sinusoids(torch.arange(20), 16)
    torch.testing.assert_close(torch.cat((ours[:, ::2], ours[:, 1::2]), dim=1), theirs.weight)
