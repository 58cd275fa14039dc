"""A passage with each option of a question, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from finetune.text.features.long_texts import CUT, LongConfig, pieces_of_passage
from finetune.text.features.pairs import Features, check_space, in_sequences, joined
from finetune.text.tokenizer.tokenizer import Template, Tokenizer, tokenizer_threads


def encode_choices(
    tokenizer: Tokenizer,
    passages: Sequence[str],
    questions_with_options: Sequence[Sequence[str | None]],
    max_length: int,
    long: LongConfig = CUT,
) -> list[Features]:
    """Encode a passage with each of the C options of a question (Radford et al., 2018).

    `[CLS] passage [SEP] question and option [SEP]`, once for each option. What does not fit is
    taken from the passage: an option that lost its end could not be distinguished from another.

    The end of the passage is cut, for each option by as much as is needed beside it. Only where a
    question with its option is longer than the whole space is its own end cut, and the passage left
    out. In windows all options have the same pieces of the passage (`pieces_of_passage`).

    Args:
        tokenizer: Splits the texts and knows its special tokens.
        passages: The passage of each question (N,). One that comes again is tokenized once.
        questions_with_options: Of each question, the C texts that follow the passage: the question
            filled or joined with an option; None for an option that it lacks (N, C).
        max_length: Tokens that a sequence may have, special tokens included.
        long: What is read of longer passages.

    Returns:
        N C features without labels: those of the first question in the order of its options, those
        of the second, …. One without tokens stands for an option that a question lacks. Of a
        passage in W windows W C: the options of the first window, those of the second, ….

    Raises:
        ConfigError: `max_length` leaves no space for a token of each text, or for windows that
            overlap so far.
    """
    template = tokenizer.template(pair=True)
    space = max_length - template.size
    check_space(space, max_length, template, 2)
    long.check_space(space - 1, max_length)
    distinct = list(dict.fromkeys(passages))  # RACE asks several questions about each
    with tokenizer_threads():
        passage_ids = dict(zip(distinct, tokenizer.encode_ids(distinct), strict=True))
        every = chain.from_iterable(questions_with_options)
        second_ids = iter(tokenizer.encode_ids([one for one in every if one is not None]))
    questions = (
        _question(
            passage_ids[passage],
            [None if second is None else next(second_ids) for second in seconds],
            space,
            template,
            long,
        )
        for passage, seconds in zip(passages, questions_with_options, strict=True)
    )
    return in_sequences(questions, long)


def _question(
    passage: list[int],
    seconds: Sequence[list[int] | None],
    space: int,
    template: Template,
    long: LongConfig,
) -> list[Features]:
    """The sequences of a question, those of a window together."""
    windows = pieces_of_passage(passage, [ids for ids in seconds if ids is not None], space, long)
    if windows is None:
        return [_choice(passage, ids, space, template, long) for ids in seconds]
    pieces, lost = windows
    made = [
        Features([], []) if ids is None else joined(piece, ids, template)
        for piece in pieces
        for ids in seconds
    ]
    made[0].trimmed = lost
    return made


def _choice(
    passage: list[int], second: list[int] | None, space: int, template: Template, long: LongConfig
) -> Features:
    if second is None:
        return Features([], [])
    second_length = min(len(second), space)
    passage_length = min(len(passage), space - second_length)
    made = joined(long.kept(passage, passage_length), second[:second_length], template)
    made.trimmed = len(passage) + len(second) - passage_length - second_length
    return made
