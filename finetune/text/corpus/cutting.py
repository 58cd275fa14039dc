"""Cut a corpus into shards, before it is read: which documents each shard has.

The shards are a function of the files, so that any process on any machine cuts the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from finetune.text.corpus.documents import TITLE, begins_with_title
from finetune.text.corpus.sources import HubSource, Piece, kind, open_hub

_CUT_ANYWHERE = (".txt", ".tokens", ".jsonl")  # kinds of which a part can be found and read alone


def cut_shards(
    sources: Iterable[Path | HubSource], size: int, *, text_field: str, file_is_document: bool
) -> list[list[Piece]]:
    """Cut a corpus into shards: a piece of a large file, or several small files.

    Args:
        sources: What `corpus_sources` found.
        size: Bytes of a shard; a file that cannot be cut makes it larger.
        text_field: As for `read_documents`.
        file_is_document: As for `read_documents`.

    Returns:
        The pieces of each shard; their documents, one after another, are those of the sources.

    Raises:
        DataError: A source cannot be read.
    """
    shards: list[list[Piece]] = []
    space = 0
    for source in sources:
        for piece in cut_source(
            source, size, text_field=text_field, file_is_document=file_is_document
        ):
            # The parts of a data set, whose sizes are not known, are shards of their own.
            if not shards or piece.size > space or isinstance(source, HubSource):
                shards.append([])
                space = size
            shards[-1].append(piece)
            space = 0 if isinstance(source, HubSource) else space - piece.size
    return shards


def cut_source(
    source: Path | HubSource, size: int, *, text_field: str = "text", file_is_document: bool = False
) -> list[Piece]:
    """Cut a source into pieces between two documents, without reading it.

    A text or jsonl file is cut at about each multiple of a size. A packed file, a parquet file and
    rows that make articles cannot be entered in their middle: such a file is one piece. A data set
    has as many pieces as `datasets` finds files for it.

    Args:
        source: A file or data set.
        size: Bytes of a piece.
        text_field: As for `read_documents`.
        file_is_document: As for `read_documents`.

    Raises:
        DataError: The source cannot be read.
    """
    if isinstance(source, HubSource):
        parts = 1 if begins_with_title(source, text_field) else open_hub(source).num_shards
        return [Piece(source, part=(number, parts)) for number in range(parts)]
    rows = kind(source) == ".jsonl"
    total = source.stat().st_size
    if total <= size or kind(source) not in _CUT_ANYWHERE or (file_is_document and not rows):
        return [Piece(source)]
    articles = begins_with_title(source, text_field)
    if articles and rows:
        return [Piece(source)]
    find = _next_row if rows else _next_article if articles else _next_paragraph
    with source.open("rb") as file:
        cuts = [0]
        while total - cuts[-1] > size and (cut := find(file, cuts[-1] + size)) < total:
            cuts.append(cut)
    ends = [*cuts[1:], total]
    return [Piece(source, *span, articles) for span in zip(cuts, ends, strict=True)]


def _next_row(file: BinaryIO, position: int) -> int:
    """Where the first line begins that begins at a position or after it."""
    file.seek(position - 1)  # if this is the end of a line, a line begins at the position
    file.readline()
    return file.tell()


def _next_paragraph(file: BinaryIO, position: int) -> int:
    """Where a paragraph begins after the first blank line from a position on, or the file ends."""
    begin = _next_row(file, position)
    is_after_blank = False
    for line in file:
        is_blank = not _as_read(line)
        if is_after_blank and not is_blank:
            return begin
        is_after_blank |= is_blank
        begin += len(line)
    return begin


def _next_article(file: BinaryIO, position: int) -> int:
    """Where the first article begins after a position, or the file ends."""
    begin = _next_paragraph(file, position)
    file.seek(begin)
    paragraph: list[str] = []
    end = begin
    for line in chain(file, [b""]):
        end += len(line)
        if text := _as_read(line):
            paragraph.append(text)
            continue
        if TITLE.fullmatch(" ".join(paragraph)):
            return begin
        paragraph, begin = [], end
    return begin


def _as_read(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()
