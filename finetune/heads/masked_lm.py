"""The masked-language-model head: hidden states of masked positions -> words."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder import EncoderConfig, activation, initialize_weights
from finetune.encoder.norms import make_norm
from finetune.heads.protocol import Head, cross_entropy


class MaskedLM(nn.Module, Head):
    """Predict masked tokens (Devlin et al., 2019, section 3.1).

    A transform D -> E, then a product with the word embeddings, then a bias for each word; with
    `lm_transform` false the product alone, as in GPT.

    >>> import torch
    >>> from finetune import EncoderConfig, MaskedLM
    >>> config = EncoderConfig(vocab_size=100, hidden_size=16, num_attention_heads=2)
    >>> head = MaskedLM(config, torch.nn.Embedding(100, 16))
    >>> logits = head(torch.zeros(3, 16))  # of three masked tokens
    >>> logits.shape
    torch.Size([3, 100])
    >>> round(head.loss(logits, torch.tensor([7, 42, 9])).item(), 4)  # it knows nothing: ln 100
    4.6052
    """

    kind = "masked_lm"

    def __init__(self, config: EncoderConfig, word_embeddings: nn.Embedding) -> None:
        """Make the transform, the biases and, unless tied, the output weights.

        Args:
            config: The encoder's config; `tie_word_embeddings` decides where the weights live.
            word_embeddings: The encoder's table (V, E). Tied, it stays the encoder's parameter
                and is none of this head's.
        """
        super().__init__()
        size = config.word_embedding_size
        self.transforms = config.lm_transform
        if self.transforms:
            self.dense = nn.Linear(config.hidden_size, size)
            self.activation = activation(config.hidden_act)
            self.norm = make_norm(config, size)
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # this head's, tied or not
        # A tuple hides a tied table from this module's parameters: it belongs to the encoder.
        self._tied = (word_embeddings,) if config.tie_word_embeddings else ()
        if not self._tied:
            self.decoder = nn.Linear(size, config.vocab_size, bias=False)
        initialize_weights(self, config.initializer_range)

    @property
    def weight(self) -> Tensor:
        """The output weights (V, E): the word embeddings if tied."""
        return self._tied[0].weight if self._tied else self.decoder.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Score each word of the vocabulary; give it masked positions only, as V is large.

        Args:
            hidden: Last hidden states, (N, D).

        Returns:
            Logits (N, V).
        """
        if not self.transforms:
            return F.linear(hidden, self.weight)
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))  # (N, E)
        return F.linear(transformed, self.weight, self.bias)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy over the labelled tokens.

        Args:
            logits: (N, V).
            labels: int64 (N,), -100 where a token takes no part.

        Returns:
            Nats a labelled token, float32 scalar; 0 where there is none.
        """
        return cross_entropy(logits, labels)
