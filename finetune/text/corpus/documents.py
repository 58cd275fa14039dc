"""Read documents from files, folders and hub data sets, one at a time.

Text files (`.txt`, and WikiText's `.tokens`) are UTF-8. A blank line ends a document, whose lines
are joined by spaces; or the file is one document, as it is. `.jsonl` and `.parquet` have one
document a row, in a named field. `.txt`, `.tokens` and `.jsonl` may be packed with gzip.
`hf://NAME` is a data set that `datasets` streams. One document is in memory at a time, never a
file (unless the file is the document). A source may be read in pieces, in any order and by several
processes; together they have the documents of the source.

A source that begins with a title of WikiText's form, ` = Title = `, has articles: the next title
ends a document, blank lines and rows do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.files.placeholders import START, refuse_placeholder, refuse_placeholder_file
from finetune.files.unpacking import DAMAGED_GZIP, lines_of, unpacking
from finetune.text.corpus.sources import HUB, HubSource, Piece, kind, open_hub, readable, stream

_BOM = b"\xef\xbb\xbf"
TITLE = re.compile(r"= (?!=).*(?<!=) =")
"""WikiText's title of an article, ` = Title = `; sections of it have two signs or more."""
_LINES_BETWEEN_REPORTS = 4096

Advance = Callable[[int], None]
"""Called with the number of bytes of corpus files read since the last call."""


def read_documents(
    sources: Sequence[Path | HubSource | Piece],
    *,
    text_field: str = "text",
    file_is_document: bool = False,
    advance: Advance | None = None,
) -> Iterator[str]:
    """Yield the documents of a corpus, in the order of its sources.

    Args:
        sources: What `corpus_sources` found, or pieces of it.
        text_field: Field of a row with the text (jsonl, parquet, hub).
        file_is_document: A text file is one document, whatever blank lines it has.
        advance: Called with the bytes that were read.

    Yields:
        Documents with white space at both ends removed; what is empty then is no document.

    Raises:
        DataError: A file is not UTF-8, is damaged, or a row has no such field. The message names
            the file and the byte, line or row.
    """
    options = _Options(text_field, file_is_document, advance or (lambda _: None))
    for source in sources:
        piece = source if isinstance(source, Piece) else Piece(source)
        yield from _whole_articles(_stripped(piece, options), piece.articles)


def begins_with_title(source: Path | HubSource, text_field: str) -> bool:
    """Whether a source has articles.

    Args:
        source: A file or data set.
        text_field: Field of a row with the text.

    Raises:
        DataError: It cannot be read.
    """
    first = next(_stripped(Piece(source), _Options(text_field)), "")
    return TITLE.fullmatch(first) is not None


def _stripped(piece: Piece, options: _Options) -> Iterator[str]:
    """The paragraphs and rows of a piece that have text."""
    if isinstance(piece.source, HubSource):
        documents = _read_hub(piece.source, piece.part, options.text_field)
    else:
        documents = READERS[kind(piece.source)](piece, options)
    return filter(None, map(str.strip, documents))


def _whole_articles(texts: Iterator[str], has_articles: bool | None) -> Iterator[str]:
    """Join the paragraphs of an article, in a source that begins with the title of one.

    Otherwise paragraphs of one article would be trained on and validated on.
    """
    first = next(texts, None)
    if first is None:
        return
    if has_articles is None:
        has_articles = TITLE.fullmatch(first) is not None
    if not has_articles:
        yield from chain([first], texts)
        return
    article = [first]
    for text in texts:
        if TITLE.fullmatch(text):
            yield " ".join(article)
            article = []
        article.append(text)
    yield " ".join(article)


@dataclass(frozen=True)
class _Options:
    text_field: str
    file_is_document: bool = False
    advance: Advance = field(default=lambda _: None)


def _read_text(piece: Piece, options: _Options) -> Iterator[str]:
    lines = _read_lines(piece, options.advance)
    if options.file_is_document:
        yield "\n".join(lines)
        return
    paragraph: list[str] = []
    for line in chain(lines, [""]):  # an empty line ends the last paragraph too
        if stripped := line.strip():
            paragraph.append(stripped)
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []


def _read_jsonl(piece: Piece, options: _Options) -> Iterator[str]:
    for number, line in enumerate(_read_lines(piece, options.advance), start=1):
        if not line.strip():
            continue
        try:
            text = _field(_parse_row(line), options.text_field)
        except DataError as error:
            before = _count_lines(piece.file, piece.begin)
            raise DataError(f"{piece.file}:{before + number}: {error}") from error
        yield text


def _count_lines(file: Path, end: int) -> int:
    """Count the lines of a file before a byte: only where a message is to name one."""
    count = 0
    with file.open("rb") as content:
        while part := content.read(min(1 << 20, end - content.tell())):
            count += part.count(b"\n")
    return count


def _parse_row(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"expected a JSON object: {error}") from error


def _field(row: Any, name: str) -> str:
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, got {type(row).__name__}")
    if name not in row:
        fields = ", ".join(row) or "none"
        raise DataError(f"no field '{name}'; its fields are {fields} (see text_field)")
    text = row[name]
    if not isinstance(text, str):
        raise DataError(f"expected text in field '{name}', got {type(text).__name__}")
    if not _is_unicode(text):
        raise DataError(f"field '{name}' has half of a surrogate pair, which is no text")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell "\ud83d" alone
        return False
    return True


def _read_parquet(piece: Piece, options: _Options) -> Iterator[str]:
    file = piece.file
    refuse_placeholder_file(file, DataError)
    rows = stream(str(file), "parquet", data_files=[str(file)], split="train")
    yield from _texts(rows, options.text_field, str(file))
    options.advance(file.stat().st_size)


def _read_hub(source: HubSource, part: tuple[int, int], text_field: str) -> Iterator[str]:
    number, parts = part
    rows = open_hub(source)
    if parts > 1:
        rows = rows.shard(num_shards=parts, index=number)
    yield from _texts(rows, source.field or text_field, HUB + source.name)


def _texts(rows: Any, name: str, where: str) -> Iterator[str]:
    for number, row in enumerate(_readable_rows(rows, where)):
        try:
            text = _field(row, name)
        except DataError as error:
            raise DataError(f"{where}: row {number}: {error}") from error
        yield text


def _readable_rows(rows: Any, where: str) -> Iterator[Any]:
    with readable(where):
        yield from rows


def _read_lines(piece: Piece, advance: Advance) -> Iterator[str]:
    """Yield the lines of a text file without their ends; LF and CRLF, BOM or none."""
    file, offset = piece.file, piece.begin
    for line in _raw_lines(piece, advance):
        content = line.removeprefix(_BOM) if offset == 0 else line
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            position = offset + len(line) - len(content) + error.start
            raise DataError(
                f"{file}: byte {position} (0x{content[error.start]:02x}) is not UTF-8"
                f"{' (counted in the unpacked text)' if file.suffix == '.gz' else ''}; "
                "convert the file, for instance with iconv -t UTF-8"
            ) from error
        offset += len(line)
        yield text.rstrip("\r\n")


def _raw_lines(piece: Piece, advance: Advance) -> Iterator[bytes]:
    file, reported, position = piece.file, piece.begin, piece.begin
    try:
        with file.open("rb") as raw:
            # Over the raw file, whose position says how many packed bytes have been read.
            lines = unpacking(raw, file, packed=file.suffix.lower() == ".gz")
            refuse_placeholder(lines.peek(START), file, DataError)
            if piece.begin:
                lines.seek(piece.begin)
            for number, line in enumerate(lines_of(lines, file)):
                yield line
                position += len(line)
                if piece.end is not None and position >= piece.end:
                    break
                if number % _LINES_BETWEEN_REPORTS == 0:
                    advance(raw.tell() - reported)
                    reported = raw.tell()
            advance(raw.tell() - reported)
    except DAMAGED_GZIP as error:
        raise DataError(f"{file}: damaged gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


READERS: dict[str, Callable[[Piece, _Options], Iterator[str]]] = {
    ".txt": _read_text,
    ".txt.gz": _read_text,
    ".tokens": _read_text,
    ".tokens.gz": _read_text,
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
}
"""Kind of file -> function that yields its documents."""
