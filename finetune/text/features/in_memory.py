"""Examples in memory as rows: lists, dictionaries, pandas DataFrames and `datasets.Dataset`.

The libraries are recognized by their methods, so that neither is imported here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from finetune.errors import DataError

Row = dict[str, Any]
"""Field -> value."""


def rows_of(data: Any, name: str = "data") -> Iterator[Row]:
    """The rows of examples in memory, in order.

    A missing value of a DataFrame (NaN, NA) becomes None, a class number of a `Dataset` the name of
    the class.

    Args:
        data: A text; a tuple, the texts of one example; a dictionary, the fields of one example or
            columns with a list each; a pandas DataFrame or Series; a `datasets.Dataset`; or any
            other iterable of texts, tuples and dictionaries.
        name: Name of the argument, for messages.

    Yields:
        Fields of each row; of a text its field is `text`, of a tuple they are `text1`, `text2`, ….

    Raises:
        DataError: The data or one of its rows is of another type, or columns differ in length.
    """
    for number, row in enumerate(_items(data, name)):
        yield _fields(row, f"{name}[{number}]")


def _items(data: Any, name: str) -> Iterable[Any]:
    if isinstance(data, str | tuple):
        return [data]
    if isinstance(data, Mapping):
        return _records(data, name)
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a DataFrame
        present = data.astype(object).where(data.notna(), None)
        return list(present.to_dict("records"))
    if hasattr(data, "features") and hasattr(data, "column_names"):  # a Dataset
        return _with_class_names(data)
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"{name}: expected texts, rows, a DataFrame or a Dataset, got {type(data).__name__}"
        )
    return data


def _records(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The rows of a dictionary of columns; of one row, that row."""
    if any(hasattr(value, "column_names") for value in data.values()):
        raise DataError(
            f"{name}: expected one split, got a dictionary of {', '.join(map(str, data))}; name "
            "one of them, as in data['train']"
        )
    if not data or not all(map(_is_column, data.values())):
        return [data]
    lengths = {key: len(column) for key, column in data.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{name}: expected columns of one length, got {listed}")
    return [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]


def _is_column(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)


def _with_class_names(data: Any) -> Iterator[Mapping[str, Any]]:
    named = {key: kind for key, kind in data.features.items() if hasattr(kind, "int2str")}
    for row in data:
        for key, kind in named.items():
            known = row[key] is not None and row[key] >= 0  # -1 stands for a withheld label
            row[key] = kind.int2str(row[key]) if known else None
        yield row


def _fields(row: Any, where: str) -> Row:
    if isinstance(row, str):
        return {"text": str(row)}
    if isinstance(row, Mapping):
        return {str(key): _plain(value) for key, value in row.items()}
    if isinstance(row, Sequence) and not isinstance(row, bytes):
        return {f"text{number}": _plain(part) for number, part in enumerate(row, start=1)}
    raise DataError(
        f"{where}: expected a text, a tuple of texts or a dictionary of fields, got "
        f"{'nothing' if row is None else type(row).__name__}"
    )


def _plain(value: Any) -> Any:
    """A value as Python's types have it; None for a missing one."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of numpy or torch
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value
