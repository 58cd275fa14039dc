"""The nearest words of some words, a table each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.report.inside.files import Found, blocks, figure_of
from finetune.report.markup import Cell, Column, Html, Row, data_table, element, joined
from finetune.report.parts import Part

LEAD = "By the cosine of their vectors in the embedding, before any layer has read the context."


def words_part(found: Sequence[Found]) -> Part:
    """What `finetune inspect words` found.

    Raises:
        DataError: A file holds something else.
    """
    return Part("words", "Nearest words", blocks(found, _block), LEAD)


def _block(found: Found) -> Html:
    tables = [_table(one) for one in found.content["words"]]
    grid = element("div", *tables, class_="matrices many")
    return joined([element("h3", found.name), grid])


def _table(one: Mapping[str, Any]) -> Html:
    pieces = " ".join(map(str, one["pieces"]))
    caption = str(one["word"]) if pieces == one["word"] else f"{one['word']} ({pieces})"
    columns = [Column("Nearest"), Column("Cosine", number=True)]
    near = [(str(each["token"]), figure_of(each["cosine"])) for each in one["neighbours"]]
    rows: list[Row] = [
        [token, Cell(None if cosine is None else f"{cosine:.3f}", cosine)] for token, cosine in near
    ]
    return data_table(caption, columns, rows, sortable=False)
