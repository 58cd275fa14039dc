"""Look inside an encoder: attention maps, probes of each layer, similarity of layers, words.

Each module computes plain values; its docstring also warns how not to read them:

    attention    attention weights of one text      attention_page, plots    as HTML and PNG
    alignment    cross-attention: which words of a source each word of a target was written from
    heads        averages of what each head attends to
    layers       hidden states of all layers, through the cache of fine-tuning
    probes       what a linear classifier reads off each layer; mixing: which layers it weighs
    similarity   linear CKA between the layers of two encoders
    logit_lens   what the language-model head reads off each layer
    pairs        whether a language model prefers good sentences to bad ones
    words        nearest tokens in the embedding    frequency    loss by how often a token was seen
    masks        what a pretrained model puts into a gap
"""

from finetune.inspection.alignment import Alignment, alignment
from finetune.inspection.attention import AttentionMap, attention_map
from finetune.inspection.attention_page import Part, attention_page, attention_part
from finetune.inspection.frequency import loss_by_frequency
from finetune.inspection.heads import HeadSummary, summarize_heads
from finetune.inspection.layers import LayerStates, layer_vectors
from finetune.inspection.logit_lens import logit_lens
from finetune.inspection.mixing import fit_mix
from finetune.inspection.pairs import judge_pairs
from finetune.inspection.probes import ProbeConfig, probe
from finetune.inspection.similarity import layer_similarity, linear_cka
from finetune.inspection.words import nearest_words
from finetune.jobs.fill_masks import MaskFiller, load_filler
from finetune.jobs.sources import Model, Sequences, TextChoice, load_model, read_sequences

__all__ = [
    "Alignment",
    "AttentionMap",
    "HeadSummary",
    "LayerStates",
    "MaskFiller",
    "Model",
    "Part",
    "ProbeConfig",
    "Sequences",
    "TextChoice",
    "alignment",
    "attention_map",
    "attention_page",
    "attention_part",
    "fit_mix",
    "judge_pairs",
    "layer_similarity",
    "layer_vectors",
    "linear_cka",
    "load_filler",
    "load_model",
    "logit_lens",
    "loss_by_frequency",
    "nearest_words",
    "probe",
    "read_sequences",
    "summarize_heads",
]
