"""Words to ids and tensors: tokenizer, corpus, blocks, masks, features. Knows no network."""

from finetune.text.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.documents import corpus_sources, read_documents
from finetune.text.features import (
    Batch,
    Features,
    collate,
    encode_pairs,
    length_batches,
    padding_share,
)
from finetune.text.masking import MaskingConfig, mask_blocks
from finetune.text.packing import Block, Blocks, document_mask, document_positions
from finetune.text.statistics import CorpusStatistics
from finetune.text.tokenizer import Encoding, Tokenizer
from finetune.text.vocabulary import TokenizerConfig, train_tokenizer

__all__ = [
    "Batch",
    "Block",
    "Blocks",
    "Corpus",
    "CorpusConfig",
    "CorpusStatistics",
    "Encoding",
    "Features",
    "MaskingConfig",
    "Tokenizer",
    "TokenizerConfig",
    "build_corpus",
    "collate",
    "corpus_sources",
    "document_mask",
    "document_positions",
    "encode_pairs",
    "length_batches",
    "mask_blocks",
    "padding_share",
    "read_documents",
    "train_tokenizer",
]
