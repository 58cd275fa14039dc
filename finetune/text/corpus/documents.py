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

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from finetune.errors import ConfigError, DataError
from finetune.files.placeholders import START, refuse_placeholder, refuse_placeholder_file
from finetune.files.unpacking import DAMAGED_GZIP, lines_of, unpacking

HUB = "hf://"
_BOM = b"\xef\xbb\xbf"
TITLE = re.compile(r"= (?!=).*(?<!=) =")
"""WikiText's title of an article, ` = Title = `; sections of it have two signs or more."""
_LINES_BETWEEN_REPORTS = 4096

Advance = Callable[[int], None]
"""Called with the number of bytes of corpus files read since the last call."""


@dataclass(frozen=True)
class HubSource:
    """A data set named `hf://NAME[@CONFIG][:SPLIT[:FIELD]]`; NAME may be a local folder."""

    name: str
    """Name on the hub or folder."""
    config: str | None
    """Configuration, such as `wikitext-103-raw-v1`."""
    split: str
    """Split, `train` unless named."""
    field: str | None
    """Field with the text; None for the `text_field` setting."""

    def __str__(self) -> str:
        """Its address."""
        name = f"{self.name}@{self.config}" if self.config else self.name
        return ":".join(filter(None, (f"{HUB}{name}", self.split, self.field)))

    @classmethod
    def parse(cls, address: str) -> HubSource:
        """Read an address.

        Raises:
            DataError: The address names no data set or has too many parts.
        """
        name, *rest = address.removeprefix(HUB).split(":")
        name, _, config = name.partition("@")
        if not name or len(rest) > 2:
            raise DataError(f"{address}: expected {HUB}NAME[@CONFIG][:SPLIT[:FIELD]]")
        split, field = [*rest, "", ""][:2]
        return cls(name, config or None, split or "train", field or None)


@dataclass(frozen=True)
class Piece:
    """A part of a source that is read alone; a whole source where nothing else is said."""

    source: Path | HubSource
    """The file or data set."""
    begin: int = 0
    """Byte at which its first document begins."""
    end: int | None = None
    """Byte after its last document; None: the end of the file."""
    articles: bool | None = None
    """Whether a title begins a document; None: the first document tells."""
    part: tuple[int, int] = (0, 1)
    """Of a data set: number of the part, and how many parts there are."""

    @property
    def file(self) -> Path:
        """The source, which is a file."""
        return Path(str(self.source))

    @property
    def size(self) -> int:
        """Bytes to read; 0 if that is not known."""
        if isinstance(self.source, HubSource):
            return 0
        return (self.source.stat().st_size if self.end is None else self.end) - self.begin


def split_weight(name: str) -> tuple[str, float | None]:
    """Split an input of a corpus into its path and its weight.

    Args:
        name: `PATH` or `PATH:WEIGHT`. A path that exists is a path, also with a colon in it.

    Returns:
        Path and weight, None where there is none.

    Raises:
        ConfigError: The weight is not a positive number.

    >>> split_weight("news:0.7"), split_weight("C:/news"), split_weight("hf://imdb:train")
    (('news', 0.7), ('C:/news', None), ('hf://imdb:train', None))
    """
    path, colon, last = name.rpartition(":")
    if not colon or not path or Path(name).exists():
        return name, None
    try:
        weight = float(last)
    except ValueError:
        if Path(path).exists():
            raise ConfigError(
                f"corpus: expected {path}:WEIGHT, such as {path}:0.5, got '{name}'"
            ) from None
        return name, None
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"corpus: expected a weight above 0 after the colon, got '{name}'")
    return path, weight


def corpus_sources(paths: Sequence[str | Path]) -> list[Path | HubSource]:
    """Find all that the paths name: each file once, in sorted order, then the hub data sets.

    Args:
        paths: Files, folders (searched to the bottom; files of other kinds and hidden ones are
            passed over) and `hf://` addresses; a weight after a colon is passed over.

    Raises:
        DataError: A path does not exist, is a file of an unknown kind, or is a folder with no
            corpus file in it.
    """
    names = [split_weight(str(path))[0] for path in paths]
    addresses = sorted({name for name in names if name.startswith(HUB)})
    files = {
        file.resolve(): file  # a file that two paths name is read once
        for path in names
        if not path.startswith(HUB)
        for file in _files_under(Path(path))
    }
    named = [files[path] for path in sorted(files)]  # the order of arguments must not matter
    return [*named, *(HubSource.parse(address) for address in addresses)]


def _files_under(path: Path) -> list[Path]:
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and _is_corpus_file(file)]
        if not files:
            raise DataError(f"{path}: expected files ending in {_kinds()}, got none")
        return files
    if not path.exists():
        raise DataError(f"{path}: no such corpus file or folder")
    if kind(path) not in READERS:
        raise DataError(f"{path}: cannot read this kind of file; expected one of {_kinds()}")
    return [path]


def _is_corpus_file(file: Path) -> bool:
    return kind(file) in READERS and not file.name.startswith(".")


def _kinds() -> str:
    return ", ".join(READERS)


def kind(file: Path) -> str:
    """Say what kind of file it is: its ending, with `.gz` if packed, such as `.txt.gz`."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def digest(source: Path | HubSource) -> str:
    """Hash what a source contains, so that a changed corpus is noticed.

    Args:
        source: A file, whose bytes count and whose name does not, or a hub data set, whose
            revision counts.

    Returns:
        Hexadecimal digits.

    Raises:
        DataError: The source cannot be read.
    """
    if isinstance(source, HubSource):
        with _readable(HUB + source.name):
            import datasets

            builder = datasets.load_dataset_builder(source.name, source.config)
        return f"{builder.hash}:{source.split}:{source.field}"
    try:
        with source.open("rb") as file:
            return f"{kind(source)}:{hashlib.file_digest(file, 'blake2b').hexdigest()}"
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}") from error


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
    rows = _stream(str(file), "parquet", data_files=[str(file)], split="train")
    yield from _texts(rows, options.text_field, str(file))
    options.advance(file.stat().st_size)


def _read_hub(source: HubSource, part: tuple[int, int], text_field: str) -> Iterator[str]:
    number, parts = part
    rows = open_hub(source)
    if parts > 1:
        rows = rows.shard(num_shards=parts, index=number)
    yield from _texts(rows, source.field or text_field, HUB + source.name)


def open_hub(source: HubSource) -> Any:
    """Open a data set so that its rows are read one after another.

    Raises:
        DataError: It cannot be read.
    """
    return _stream(HUB + source.name, source.name, name=source.config, split=source.split)


def _stream(where: str, path: str, **options: Any) -> Any:
    """Open a data set through `datasets` so that rows arrive as they are asked for."""
    with _readable(where):
        import datasets

        return datasets.load_dataset(path, streaming=True, **options)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Turn what `datasets` raises into one line."""
    try:
        yield
    except ImportError as error:
        raise DataError(f"{where}: needs the package `datasets`: pip install datasets") from error
    except Exception as error:  # datasets, pyarrow, fsspec and the hub each have their own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{where}: cannot be read as a data set: {reason}") from error


def _texts(rows: Any, name: str, where: str) -> Iterator[str]:
    for number, row in enumerate(_readable_rows(rows, where)):
        try:
            text = _field(row, name)
        except DataError as error:
            raise DataError(f"{where}: row {number}: {error}") from error
        yield text


def _readable_rows(rows: Any, where: str) -> Iterator[Any]:
    with _readable(where):
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
