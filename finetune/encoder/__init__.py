"""The network: token ids in, hidden states out. Torch only; it knows neither text nor tasks.

The letters of the shapes, the same in the whole project:

    B  batch                 H  attention heads         V  vocabulary
    T  tokens                K  width of a head         C  classes or choices
    D  hidden size           F  feed-forward width      L  blocks
    E  embedding size (D unless `embedding_size` is set)

Reading order: config, embeddings, masks, scores, cache, memory, relative, attention, feedforward,
block, contexts, encoder. For speed alone: slabs (dropout on a CPU), tiles (local attention),
layout and varlen (padding that is not computed).
"""

from typing import TYPE_CHECKING

from finetune.machine.packages import lazy_names

if TYPE_CHECKING:
    from finetune.encoder.config import EncoderConfig
    from finetune.encoder.dropout import Dropout
    from finetune.encoder.encoder import Encoder, EncoderOutput, initialize_weights
    from finetune.encoder.feedforward import activation

__all__ = [
    "Dropout",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "activation",
    "initialize_weights",
]

__getattr__ = lazy_names(__name__, __all__, ("config", "dropout", "encoder", "feedforward"))
