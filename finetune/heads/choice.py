"""The multiple-choice head: one score for each option of a question, softmax over the options."""

from __future__ import annotations

from torch import Tensor

from finetune.encoder import EncoderConfig
from finetune.heads.config import HeadConfig
from finetune.heads.pooled import PooledHead
from finetune.heads.protocol import cross_entropy


class MultipleChoice(PooledHead):
    """One of C options for each question (Radford et al., 2018, section 3.3).

    Every option is read in a sequence of its own, `[CLS] passage [SEP] question and option [SEP]`,
    and scored by the same weights. So no weight's size depends on C.

    >>> import torch
    >>> from finetune import EncoderConfig, HeadConfig, MultipleChoice
    >>> config = EncoderConfig(hidden_size=16, num_attention_heads=2)
    >>> head = MultipleChoice(config, HeadConfig(), num_choices=4)
    >>> logits = head(torch.zeros(8, 5, 16))  # two questions of four options
    >>> logits.shape
    torch.Size([2, 4])
    >>> round(head.loss(logits, torch.tensor([3, 0])).item(), 4)  # it knows nothing: ln 4
    1.3863
    """

    kind = "choice"
    uneven = False
    """Whether some questions have fewer than C options."""

    def __init__(self, config: EncoderConfig, head: HeadConfig, num_choices: int) -> None:
        """Make a head that scores an option.

        Args:
            config: The encoder's config.
            head: Names the pooling and the dropout.
            num_choices: C, options of every question.
        """
        super().__init__(config, head, num_outputs=1)
        self.num_choices = num_choices

    def forward(
        self,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        input_ids: Tensor | None = None,
        window_of: Tensor | None = None,
    ) -> Tensor:
        """Score the options of each question.

        Args:
            hidden: Last hidden states, the C options of a question one after the other,
                (B C, T, D).
            attention_mask: True where there is a token, bool (B C, T); None if everywhere.
            input_ids: int64 (B C, T), where the pooling reads them: the first of the texts that it
                compares is the passage, the second the question with the option.
            window_of: Number in 0 … B C - 1 of the option that each sequence is a window of, int64;
                None where each is an option.

        Returns:
            Logits (B, C).
        """
        scores = super().forward(hidden, attention_mask, input_ids, window_of)  # (B C, 1)
        return scores.view(-1, self.num_choices)  # (B, C)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Average the cross-entropy over the labelled questions.

        Args:
            logits: (B, C).
            labels: The right option, int64 (B,), 0 .. C - 1; -100 where it is not known.

        Returns:
            Nats a question, float32 scalar; ln C where the head cannot distinguish the options, 0
            where no question is labelled.
        """
        return cross_entropy(logits, labels)
