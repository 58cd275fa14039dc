"""What `finetune inspect` found inside a net, as parts of a report.

A file says by its fields what it holds. A number that cannot be drawn (a similarity that is not
defined) is a dash; a file of another form is an error in one line, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from finetune.report.inside.files import KINDS, InspectionFile, inspection_files
from finetune.report.inside.frequency import frequency_part
from finetune.report.inside.heads import alignment_part, attention_part, heads_part
from finetune.report.inside.probes import probes_part
from finetune.report.inside.similarity import similarity_part, words_part
from finetune.report.parts import Part

__all__ = ["KINDS", "inside_parts"]

PARTS: dict[str, Callable[[Sequence[InspectionFile]], Part]] = {
    "probe": probes_part,
    "similarity": similarity_part,
    "heads": heads_part,
    "attention": attention_part,
    "alignment": alignment_part,
    "words": words_part,
    "frequency": frequency_part,
}
"""Kind -> what makes a part of its files, in the order of the page."""


def inside_parts(paths: Sequence[Path]) -> list[Part]:
    """The parts that files of `finetune inspect` make, one a kind.

    Args:
        paths: The files, or folders that hold some under the names that the command gave them.

    Raises:
        DataError: A file is missing, damaged or another one; a folder holds none.
    """
    every = dict.fromkeys(file for path in paths for file in inspection_files(path))
    files = [InspectionFile.read(file) for file in every]
    kinds = {file.kind for file in files}
    return [
        part([file for file in files if file.kind == kind])
        for kind, part in PARTS.items()
        if kind in kinds
    ]
