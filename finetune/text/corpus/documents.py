"""Read documents from files, folders and hub data sets, one at a time.

Text files (`.txt`, and WikiText's `.tokens`) are UTF-8. A blank line ends a document, whose lines
are joined by spaces; or the file is one document, as it is. `.jsonl` and `.parquet` have one
document a row, in a named field. `.txt`, `.tokens` and `.jsonl` may be packed with gzip.
`hf://NAME` is a data set that `datasets` streams. One document is in memory at a time, never a
file (unless the file is the document).

A source that begins with a title of WikiText's form, ` = Title = `, has articles: the next title
ends a document, blank lines and rows do not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import DataError
from finetune.files.placeholders import START, refuse_placeholder, refuse_placeholder_file
from finetune.files.unpacking import DAMAGED_GZIP, lines_of, unpacking

if TYPE_CHECKING:
    pass

HUB = "hf://"
_BOM = b"\xef\xbb\xbf"
# WikiText's title of an article, ` = Title = `; sections of it have two signs or more.
_TITLE = re.compile(r"= (?!=).*(?<!=) =")
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


def corpus_sources(paths: Sequence[str | Path]) -> list[Path | HubSource]:
    """Find all that the paths name: each file once, in sorted order, then the hub data sets.

    Args:
        paths: Files, folders (searched to the bottom; files of other kinds and hidden ones are
            passed over) and `hf://` addresses.

    Raises:
        DataError: A path does not exist, is a file of an unknown kind, or is a folder with no
            corpus file in it.
    """
    addresses = sorted({str(path) for path in paths if str(path).startswith(HUB)})
    files = {
        file.resolve(): file  # a file that two paths name is read once
        for path in paths
        if not str(path).startswith(HUB)
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
    sources: Sequence[Path | HubSource],
    *,
    text_field: str = "text",
    file_is_document: bool = False,
    advance: Advance | None = None,
) -> Iterator[str]:
    """Yield the documents of a corpus, in the order of its sources.

    Args:
        sources: What `corpus_sources` found.
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
        if isinstance(source, HubSource):
            documents = _read_hub(source, text_field)
        else:
            documents = READERS[kind(source)](source, options)
        yield from _whole_articles(filter(None, map(str.strip, documents)))


def _whole_articles(pieces: Iterator[str]) -> Iterator[str]:
    """Join the paragraphs of an article, in a source that begins with the title of one.

    Otherwise paragraphs of one article would be trained on and validated on.
    """
    first = next(pieces, None)
    if first is None:
        return
    if not _TITLE.fullmatch(first):
        yield from chain([first], pieces)
        return
    article = [first]
    for piece in pieces:
        if _TITLE.fullmatch(piece):
            yield " ".join(article)
            article = []
        article.append(piece)
    yield " ".join(article)


@dataclass(frozen=True)
class _Options:
    text_field: str
    file_is_document: bool
    advance: Advance


def _read_text(file: Path, options: _Options) -> Iterator[str]:
    lines = _read_lines(file, options.advance)
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


def _read_jsonl(file: Path, options: _Options) -> Iterator[str]:
    for number, line in enumerate(_read_lines(file, options.advance), start=1):
        if line.strip():
            yield _field(_parse_row(line, file, number), options.text_field, f"{file}:{number}")


def _parse_row(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(f"{file}:{number}: expected a JSON object: {error}") from error


def _field(row: Any, name: str, where: str) -> str:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    if name not in row:
        fields = ", ".join(row) or "none"
        raise DataError(f"{where}: no field '{name}'; its fields are {fields} (see text_field)")
    text = row[name]
    if not isinstance(text, str):
        raise DataError(f"{where}: expected text in field '{name}', got {type(text).__name__}")
    if not _is_unicode(text):
        raise DataError(f"{where}: field '{name}' has half of a surrogate pair, which is no text")
    return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell "\ud83d" alone
        return False
    return True


def _read_parquet(file: Path, options: _Options) -> Iterator[str]:
    refuse_placeholder_file(file, DataError)
    rows = _stream(str(file), "parquet", data_files=[str(file)], split="train")
    yield from _texts(rows, options.text_field, str(file))
    options.advance(file.stat().st_size)


def _read_hub(source: HubSource, text_field: str) -> Iterator[str]:
    rows = _stream(HUB + source.name, source.name, name=source.config, split=source.split)
    yield from _texts(rows, source.field or text_field, HUB + source.name)


def _stream(where: str, path: str, **options: Any) -> Iterator[Any]:
    """Open a data set through `datasets` so that rows arrive as they are asked for."""
    with _readable(where):
        import datasets

        yield from datasets.load_dataset(path, streaming=True, **options)


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


def _texts(rows: Iterator[Any], name: str, where: str) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield _field(row, name, f"{where}: row {number}")


def _read_lines(file: Path, advance: Advance) -> Iterator[str]:
    """Yield the lines of a text file without their ends; LF and CRLF, BOM or none."""
    offset = 0
    for line in _raw_lines(file, advance):
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


def _raw_lines(file: Path, advance: Advance) -> Iterator[bytes]:
    reported = 0
    try:
        with file.open("rb") as raw:
            # Over the raw file, whose position says how many packed bytes have been read.
            lines = unpacking(raw, file, packed=file.suffix.lower() == ".gz")
            refuse_placeholder(lines.peek(START), file, DataError)
            for number, line in enumerate(lines_of(lines, file)):
                yield line
                if number % _LINES_BETWEEN_REPORTS == 0:
                    advance(raw.tell() - reported)
                    reported = raw.tell()
            advance(raw.tell() - reported)
    except DAMAGED_GZIP as error:
        raise DataError(f"{file}: damaged gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


READERS: dict[str, Callable[[Path, _Options], Iterator[str]]] = {
    ".txt": _read_text,
    ".txt.gz": _read_text,
    ".tokens": _read_text,
    ".tokens.gz": _read_text,
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".parquet": _read_parquet,
}
"""Kind of file -> function that yields its documents."""
