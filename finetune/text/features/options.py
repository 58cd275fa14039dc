"""A passage with each option of a question, as multiple choice reads them (Radford et al., 2018).

`[CLS] passage [SEP] question and option [SEP]`, once for each option. What does not fit is taken
from the passage: an option that lost its end could not be distinguished from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from finetune.errors import ConfigError
from finetune.text.features.pairs import Features
from finetune.text.tokenizer.tokenizer import Template, Tokenizer, tokenizer_threads


def encode_choices(
    tokenizer: Tokenizer,
    passages: Sequence[str],
    questions_with_options: Sequence[Sequence[str]],
    max_length: int,
) -> list[Features]:
    """Encode questions with C options each.

    The end of the passage is cut, for each option by as much as is needed beside it. Only where a
    question with its option is longer than the whole space is its own end cut, and the passage left
    out.

    Args:
        tokenizer: Splits the texts and knows its special tokens.
        passages: The passage of each question (N,). One that comes again is tokenized once.
        questions_with_options: Of each question, the C texts that follow the passage: the question
            filled or joined with an option (N, C).
        max_length: Tokens that a sequence may have, special tokens included.

    Returns:
        N C features without labels: those of the first question in the order of its options, those
        of the second, ….

    Raises:
        ConfigError: `max_length` leaves no space for a token of each text.
    """
    template = tokenizer.template(pair=True)
    space = max_length - template.size
    if space < 2:
        raise ConfigError(
            f"max_length {max_length} leaves no space for text: {template.size} tokens are special"
        )
    distinct = list(dict.fromkeys(passages))  # RACE asks several questions about each
    with tokenizer_threads():
        passage_ids = dict(zip(distinct, tokenizer.encode_ids(distinct), strict=True))
        second_ids = iter(tokenizer.encode_ids(list(chain.from_iterable(questions_with_options))))
    return [
        _sequence(passage_ids[passage], next(second_ids), space, template)
        for passage, seconds in zip(passages, questions_with_options, strict=True)
        for _ in seconds
    ]


def _sequence(passage: list[int], second: list[int], space: int, template: Template) -> Features:
    second_length = min(len(second), space)
    passage_length = min(len(passage), space - second_length)
    before = [*template.prefix, *passage[:passage_length], *template.middle]
    after = [*second[:second_length], *template.suffix]
    types = [0] * len(before) + [template.second_type] * len(after)
    trimmed = len(passage) + len(second) - passage_length - second_length
    return Features(before + after, types, trimmed=trimmed)
