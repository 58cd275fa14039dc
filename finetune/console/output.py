r"""What a terminal is shown of a text that came from outside: a label, a path, a file's content.

A control character in such a text could move the cursor, change what stands there already, or turn
the order of the characters round: it is shown as what it is, `\u001b`. JSON reads these escapes
back, so a line of JSON may be shown in the same way.
"""

from __future__ import annotations

import math
import re
import reprlib

QUOTED = 200
"""Characters of one quoted text that a message shows."""
MESSAGE = 2000
"""Characters of a whole message."""

_SPECIAL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control characters but for the line feed and the tab
    "\\u2028\\u2029"  # separators of lines and paragraphs
    "\\u202a-\\u202e\\u2066-\\u2069"  # what turns the direction of a text round
    "\\ud800-\\udfff]"  # halves of characters (lone surrogates), which no encoding has
)
_IN_A_LINE = re.compile(rf"{_SPECIAL.pattern}|[\n\t]")
_LONG = re.compile(rf"(?<!\w)(['\"])((?:(?!\1).){{{QUOTED + 1},}})\1(?!\w)")  # no apostrophes
_LONG_WORD = re.compile(r"\S{500,}")  # no path that a person can read

_bounded = reprlib.Repr()
_bounded.maxstring = _bounded.maxother = QUOTED
_bounded.maxlist = _bounded.maxtuple = _bounded.maxdict = 20


def printable(text: str, *, lines: bool = True) -> str:
    r"""A text with its control characters as escapes.

    >>> printable("safe \x1b[2J")
    'safe \\u001b[2J'

    Args:
        text: Whatever it is.
        lines: Line feeds and tabs stay as they are.
    """
    pattern = _SPECIAL if lines else _IN_A_LINE
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def put(text: str, end: str = "\n") -> None:
    """Print a text on stdout, as `printable` makes it."""
    print(printable(text), end=end, flush=True)


def counted(number: int, noun: str) -> str:
    """A number and what is counted, in the singular or, with an s, in the plural.

    >>> counted(1, "answer"), counted(2000, "answer")
    ('1 answer', '2,000 answers')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def are(number: int) -> str:
    """The verb for so many: is, are."""
    return "is" if number == 1 else "are"


def quoted(value: object) -> str:
    """A value as a message quotes it: text in quotes, of a long one the beginning.

    >>> quoted("a" * 500) == repr("a" * 200 + "…")
    True
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**QUOTED:
        return f"about {'-' if value < 0 else ''}1e{int(math.log10(abs(value)))}"
    if isinstance(value, str):
        return repr(_beginning(value))
    return _beginning(_bounded.repr(value))


def one_line(message: str) -> str:
    """A message as one line that a terminal can be given, long quotations cut."""
    line = printable(" ".join(message.split()))
    line = _LONG.sub(lambda found: f"{found[1]}{_beginning(found[2])}{found[1]}", line)
    line = _LONG_WORD.sub(lambda found: _beginning(found[0]), line)
    if len(line) <= MESSAGE:
        return line
    end = MESSAGE // 4  # which says what to do
    return f"{line[: MESSAGE - end]} … {line[-end:]}"


def _beginning(text: str) -> str:
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"
