"""Words to ids and tensors: tokenizer, corpus, blocks, masks, features. Knows no network."""

from finetune.text.corpus.corpus import Corpus, CorpusConfig, build_corpus
from finetune.text.corpus.documents import read_documents
from finetune.text.corpus.masking import MaskingConfig, mask_blocks
from finetune.text.corpus.packing import Block, Blocks, document_mask, document_positions
from finetune.text.corpus.sources import corpus_sources
from finetune.text.corpus.statistics import CorpusStatistics
from finetune.text.features.pairs import (
    Batch,
    Features,
    collate,
    encode_pairs,
    length_batches,
    padding_share,
)
from finetune.text.tokenizer.tokenizer import Encoding, Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer

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
