"""What is read of a text that is longer than one sequence: its beginning, both ends, or windows.

The two ends are those of Sun et al. (2019). Windows overlap, as a context's do
(`windows.py`); how their answers or their states become one is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from finetune.errors import ConfigError
from finetune.ranges import MOST_TOKENS, check_values, within

LONG = ("cut", "head-tail", "windows")
"""What is read of a text that is too long."""
WINDOW_LABELS = ("window", "document")
"""What a training label belongs to where texts are read in windows."""
HEAD = 128 / 510
"""Fraction of the space that the beginning of a text has beside its end: 128 of BERT's 510 tokens
without [CLS] and [SEP] (Sun et al., 2019)."""
MOST_WINDOWS = 1024
"""Most windows of a text that can be asked for."""


@dataclass(frozen=True)
class LongConfig:
    """How texts longer than max_length are read.

    >>> from finetune import LongConfig
    >>> LongConfig(long="head-tail").kept(list(range(100)), 8)
    [0, 1, 94, 95, 96, 97, 98, 99]
    >>> LongConfig(long="windows", stride=2).pieces(list(range(9)), 5)
    ([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [6, 7, 8]], 0)
    """

    long: str = field(default="cut", metadata={"words": LONG})
    """Texts longer than max_length: cut (read the beginning), head-tail (the first quarter of what
    fits and the rest from the end), or windows (all of it, in windows that overlap)."""
    stride: int = within(0, MOST_TOKENS, default=32)
    """Overlap of neighbouring windows, in tokens."""
    max_windows: int = within(1, MOST_WINDOWS, default=16)
    """Windows of a text that are read at most; what is behind them is cut."""
    window_labels: str = field(default="window", metadata={"words": WINDOW_LABELS})
    """Training with windows: window (each learns its text's label; their probabilities are averaged
    to an answer) or document (one loss a text, over the states of all its windows)."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: A word is unknown, a number lies outside its range, or documents are to be
                learned from without windows.
        """
        check_values(self)
        if self.window_labels == "document" and not self.has_windows:
            raise ConfigError(
                f"window_labels document: expected --long windows, got --long {self.long}; set it, "
                "or leave --window-labels out"
            )

    @property
    def has_windows(self) -> bool:
        """Whether a text may be read in several sequences."""
        return self.long == "windows"

    @property
    def pools_windows(self) -> bool:
        """Whether the windows of a text are read together, for one output."""
        return self.has_windows and self.window_labels == "document"

    @property
    def averages_windows(self) -> bool:
        """Whether an answer is the average of those of a text's windows."""
        return self.has_windows and not self.pools_windows

    @property
    def key(self) -> str:
        """What of this decides features; "" where texts are cut, as they always were."""
        if self.long == "cut":
            return ""
        return f"{self.long} {self.stride} {self.max_windows}" if self.has_windows else self.long

    def check_space(self, space: int, max_length: int) -> None:
        """Refuse windows that would not move on.

        Args:
            space: Tokens that a text is sure to have in a window.
            max_length: Tokens of a window, for the message.

        Raises:
            ConfigError: The overlap leaves no space for a further token.
        """
        if self.has_windows and space <= self.stride:
            raise ConfigError(
                f"stride ({self.stride}) must be less than the tokens of a text that are sure to "
                f"fit into a window: {space} with max_length {max_length}; lower stride, or raise "
                "max_length"
            )

    def kept(self, ids: list[int], length: int) -> list[int]:
        """What of a text is read in one sequence.

        Args:
            ids: Its tokens.
            length: How many fit.
        """
        if self.long != "head-tail" or len(ids) <= length:
            return ids[:length]
        head = round(HEAD * length)
        return ids[:head] + ids[len(ids) - length + head :]

    def pieces(self, ids: list[int], length: int) -> tuple[list[list[int]], int]:
        """What of a text is read, in one sequence or several.

        Args:
            ids: Its tokens.
            length: How many fit into a sequence.

        Returns:
            The tokens of each sequence, one at least, and how many tokens are in none.
        """
        if not self.has_windows or len(ids) <= length:
            return [self.kept(ids, length)], max(0, len(ids) - length)
        spans = cut(len(ids), length, self.stride)[: self.max_windows]
        return [ids[slice(*span)] for span in spans], len(ids) - spans[-1][1]


CUT = LongConfig()
"""Texts are cut."""


def cut(count: int, space: int, stride: int) -> list[tuple[int, int]]:
    """Cut a context into pieces that overlap.

    Args:
        count: Tokens of the context, 0 or more.
        space: Tokens of a piece, more than `stride`.
        stride: Tokens that a piece shares with the one before it.

    Returns:
        First token of each piece and the one after its last; all but the last piece have `space`
        tokens, and a context without tokens is one empty piece.
    """
    last_start = max(0, count - space)
    steps = -(-last_start // (space - stride))
    starts = range(0, (steps + 1) * (space - stride), space - stride)
    return [(start, min(start + space, count)) for start in starts]


def longest_first(first: int, second: int, space: int) -> tuple[int, int]:
    """Say how many tokens of two texts are kept: the longer one is cut until both are as long.

    Args:
        first: Tokens of the first text.
        second: Tokens of the second text.
        space: Tokens that both may have together.

    Returns:
        Tokens kept of each; where the space is odd, the longer text (the second, if they are as
        long) keeps one more.
    """
    if first + second <= space:
        return first, second
    short, long = min(first, second), max(first, second)
    short = min(short, space // 2)
    long = space - short
    return (long, short) if first > second else (short, long)


def pieces_of_pair(
    first: list[int], second: list[int], space: int, config: LongConfig
) -> tuple[list[tuple[list[int], list[int]]], int]:
    """What of two texts is read, in one sequence or several.

    The windows are those of the longer text; the shorter one is whole in each of them, unless it is
    longer than half of the space: then its end is cut.

    Args:
        first: Tokens of the first text.
        second: Tokens of the second text.
        space: Tokens that both may have together.
        config: How long texts are read.

    Returns:
        The tokens of both texts in each sequence, and how many tokens are in none.
    """
    lengths = longest_first(len(first), len(second), space)
    if len(first) > len(second):
        pieces, lost = config.pieces(first, lengths[0])
        short, whole = config.kept(second, lengths[1]), second
        pairs = [(piece, short) for piece in pieces]
    else:
        pieces, lost = config.pieces(second, lengths[1])
        short, whole = config.kept(first, lengths[0]), first
        pairs = [(short, piece) for piece in pieces]
    return pairs, lost + len(whole) - len(short)


def pieces_of_passage(
    passage: list[int], seconds: Sequence[list[int]], space: int, config: LongConfig
) -> tuple[list[list[int]], int] | None:
    """The pieces of a passage that are read beside each of several texts, or None for one sequence.

    Each of the texts has the same windows, as long as the longest of them allows.

    Args:
        passage: Its tokens.
        seconds: Tokens of each text, such as a question with one of its options.
        space: Tokens that passage and text may have together.
        config: How long texts are read.

    Returns:
        Tokens of each piece, and how many tokens are in none. None where texts are not read in
        windows, the whole passage fits beside each text, or a text leaves the passage no more than
        the overlap.
    """
    length = space - max(map(len, seconds), default=0)
    if not config.has_windows or len(passage) <= length or length <= config.stride:
        return None
    return config.pieces(passage, length)
