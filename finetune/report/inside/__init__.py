"""What `finetune inspect` found inside a net, as parts of a report.

A file says by its fields what it holds. A number that cannot be drawn (a similarity that is not
defined) is a dash; a file of another form is an error in one line, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from finetune.report.inside.files import KINDS, Found, found_in
from finetune.report.inside.frequency import frequency_part
from finetune.report.inside.heads import attention_part, heads_part
from finetune.report.inside.probes import probes_part
from finetune.report.inside.similarity import similarity_part, words_part
from finetune.report.parts import Part

__all__ = ["KINDS", "inside_parts"]

PARTS: dict[str, Callable[[Sequence[Found]], Part]] = {
    "probe": probes_part,
    "similarity": similarity_part,
    "heads": heads_part,
    "attention": attention_part,
    "words": words_part,
    "frequency": frequency_part,
}
"""Kind -> what makes a part of its files, in the order of the page."""


def inside_parts(places: Sequence[Path]) -> list[Part]:
    """The parts that files of `finetune inspect` make, one a kind.

    Args:
        places: The files, or folders that hold some under the names that the command gave them.

    Raises:
        DataError: A file is missing, damaged or another one; a folder holds none.
    """
    files = dict.fromkeys(file for place in places for file in found_in(place))
    found = [Found.read(file) for file in files]
    kinds = {one.kind for one in found}
    return [
        part([f for f in found if f.kind == kind]) for kind, part in PARTS.items() if kind in kinds
    ]
