"""Questions and their contexts as windows that overlap: how a long passage is read in pieces.

A window is `[CLS] question [SEP] piece of the context [SEP]` (Devlin et al., 2019, section 4.2, as
released). Which span of a window is the answer is decided elsewhere: here are the positions that
it may take, and the characters that each of them stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.errors import ConfigError
from finetune.ranges import MOST_TOKENS, check_values, within
from finetune.text.features.long_texts import cut
from finetune.text.features.pairs import IGNORED, Features, Span
from finetune.text.tokenizer.tokenizer import Template, Tokenizer, tokenizer_threads

WITHOUT_ANSWER = ("auto", "cls", "drop")
"""What is learned from a window without the answer of an answerable question."""

NO_ANSWER: Span = (0, 0)
"""Label of a window that has no answer: [CLS] is first and last."""

NOT_LEARNT: Span = (IGNORED, IGNORED)
"""Label of a window that takes no part in the loss."""

# Contexts that are tokenized together: their offsets exist as Python pairs until they are packed.
_TOGETHER = 256


@dataclass(frozen=True)
class WindowConfig:
    """How a context that is too long for one sequence is cut into windows.

    >>> from finetune import WindowConfig
    >>> windows = WindowConfig(stride=64)
    >>> windows.max_question_length
    64
    """

    stride: int = within(0, MOST_TOKENS, default=128)
    """Overlap of neighbouring windows, in tokens of the context."""
    max_question_length: int = within(1, MOST_TOKENS, default=64)
    """Longest question in tokens; longer ones are truncated."""
    without_answer: str = field(default="auto", metadata={"words": WITHOUT_ANSWER})
    """Training on windows without the answer: cls (label them "no answer"), drop (leave them out),
    or auto (cls if the data has questions without an answer, otherwise drop)."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: A number lies outside its range, or the choice for windows without the
                answer is unknown.
        """
        check_values(self)

    def drops(self, *, unanswerable: bool) -> bool:
        """Say whether windows without the answer are left out of training.

        Args:
            unanswerable: The data has questions without an answer, so that a window which says
                "no answer here" teaches what the task asks for. Where every question has one,
                it would teach an answer that is never right.
        """
        if self.without_answer == "auto":
            return not unanswerable
        return self.without_answer == "drop"


class TokenizedContext(NamedTuple):
    """A context as tokens."""

    ids: list[int]
    """Token ids (n,)."""
    offsets: NDArray[np.int32]
    """First character of each token and the one after its last, white space left out (n, 2)."""


def encode_windows(
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    max_length: int,
    config: WindowConfig,
    *,
    answers: Sequence[Span | None] | None,
    training: bool,
    drop: bool,
) -> list[Features]:
    """Cut contexts into windows, each with its question before it.

    Args:
        tokenizer: Splits the texts and knows its special tokens.
        questions: N questions.
        contexts: N contexts; those that repeat are tokenized once.
        max_length: Tokens that a window may have, special tokens included.
        config: Overlap of the windows and longest question.
        answers: First character of each answer and the one after its last, in its context; None
            for a question without one. No labels where the whole argument is None.
        training: Answers will not be read off these: they carry no offsets, and windows may be
            left out.
        drop: An answerable question's windows without the whole of its answer are not learned
            from: left out in training, otherwise labelled (-100, -100). If false their label is
            (0, 0), as is that of every window of an unanswerable question.

    Returns:
        The windows of each question in order, one at least unless all are left out; the first of
        a question has in `trimmed` how many tokens the question has lost.

    Raises:
        ConfigError: `max_length` leaves a context no more space than the stride.
    """
    template = tokenizer.template(pair=True)
    _check_space(template, max_length, config)
    with tokenizer_threads():
        question_ids = tokenizer.encode_ids(questions)
        tokenized = tokenize_contexts(tokenizer, contexts)
    windows: list[Features] = []
    for number, (question, context) in enumerate(zip(question_ids, contexts, strict=True)):
        tokens, truncated = tokenized[context], question[: config.max_question_length]
        pieces = cut(len(tokens.ids), max_length - template.size - len(truncated), config.stride)
        of_question = [_window(truncated, tokens, piece, template) for piece in pieces]
        if answers is not None:
            _label(of_question, pieces, tokens, answers[number], drop)
        if training:
            of_question = [window for window in of_question if window.label != NOT_LEARNT]
        for window in of_question:
            window.example = number
            window.offsets = None if training else window.offsets
        if of_question:  # once a question, or its windows would count the loss several times
            of_question[0].trimmed = len(question) - len(truncated)
        windows += of_question
    return windows


def _check_space(template: Template, max_length: int, config: WindowConfig) -> None:
    space = max_length - template.size - config.max_question_length
    if space <= config.stride:
        raise ConfigError(
            f"stride ({config.stride}) must be less than the tokens of a context that fit into a "
            f"window: max_length {max_length} less max_question_length "
            f"{config.max_question_length} and {template.size} special tokens leaves {space}; "
            "lower stride or max_question_length, or raise max_length"
        )


def tokenize_contexts(tokenizer: Tokenizer, contexts: Sequence[str]) -> dict[str, TokenizedContext]:
    """Tokenize each different context once.

    Args:
        tokenizer: Splits the texts.
        contexts: N texts, some of them equal.

    Returns:
        Text -> its tokens.
    """
    different = list(dict.fromkeys(contexts))  # SQuAD asks five questions about a paragraph
    tokenized = {}
    for start in range(0, len(different), _TOGETHER):
        texts = different[start : start + _TOGETHER]
        for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
            # Reshaped, so that no tokens give (0, 2) and not (0,).
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            tokenized[text] = TokenizedContext(encoding.ids, without_space(text, offsets))
    return tokenized


def without_space(text: str, offsets: NDArray[np.int32]) -> NDArray[np.int32]:
    """Take white space off both ends of tokens: some tokenizers count the space before a word.

    Args:
        text: What the offsets point into.
        offsets: First character of each token and the one after its last (n, 2).

    Returns:
        The same for what is left of each token; a token of nothing else is empty (n, 2).
    """
    if not len(offsets):
        return offsets
    space = np.fromiter(map(str.isspace, text), dtype=bool, count=len(text))
    position = np.arange(len(text), dtype=np.int32)
    # First character at or after each position, and last one at or before it, that is no space.
    later = np.minimum.accumulate(np.where(space, len(text), position)[::-1])[::-1]
    earlier = np.maximum.accumulate(np.where(space, -1, position))
    starts, ends = offsets[:, 0], offsets[:, 1]
    starts = np.where(starts < ends, np.minimum(np.append(later, len(text))[starts], ends), starts)
    ends = np.where(starts < ends, np.maximum(earlier[ends - 1] + 1, starts), ends)
    return np.stack((starts, ends), axis=1).astype(np.int32)


def answer_tokens(offsets: NDArray[np.int32], answer: Span) -> Span | None:
    """Find the tokens that cover an answer, which may begin or end inside a token.

    Args:
        offsets: First character of each token and the one after its last (n, 2).
        answer: The answer's first character and the one after its last.

    Returns:
        The first and the last token that share a character with the answer; None if none does.
    """
    starts, ends = np.maximum(offsets[:, 0], answer[0]), np.minimum(offsets[:, 1], answer[1])
    shared = np.flatnonzero(starts < ends)
    return (int(shared[0]), int(shared[-1])) if len(shared) else None


def _window(
    question: list[int], tokens: TokenizedContext, piece: Span, template: Template
) -> Features:
    before = [*template.prefix, *question, *template.middle]
    after = [*tokens.ids[slice(*piece)], *template.suffix]
    return Features(
        before + after,
        [0] * len(before) + [template.second_type] * len(after),
        context=(len(before), len(before) + piece[1] - piece[0]),
        offsets=tokens.offsets[slice(*piece)],
    )


def _label(
    windows: Sequence[Features],
    pieces: Sequence[Span],
    tokens: TokenizedContext,
    answer: Span | None,
    drop: bool,
) -> None:
    """Give each window of a question its label."""
    covered = None if answer is None else answer_tokens(tokens.offsets, answer)
    absent = NOT_LEARNT if drop and answer is not None else NO_ANSWER
    for window, (begin, end) in zip(windows, pieces, strict=True):
        window.label = absent
        # Only where the whole answer is in the window: half of it would teach a wrong end.
        if covered is not None and window.context and begin <= covered[0] and covered[1] < end:
            shift = window.context[0] - begin
            window.label = (covered[0] + shift, covered[1] + shift)
