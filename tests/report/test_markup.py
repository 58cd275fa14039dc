"""Markup: escaped by default, readable by a screen reader."""

from __future__ import annotations

import json
import re

import pytest

from finetune.report.markup import Cell, Column, Html, data_table, element, escape, script_json

HOSTILE = "</script><!-- & \"'\u2028"


def test_text_is_escaped_and_markup_is_not() -> None:
    inside = element("b", "<i>")
    assert element("p", inside, "&", title='"<') == (
        '<p title="&quot;&lt;"><b>&lt;i&gt;</b>&amp;</p>'
    )
    assert escape(Html("<b>")) == "<b>"


def test_none_and_false_leave_out_a_child_or_an_attribute() -> None:
    assert element("p", None, 0, hidden=False, open=True, class_=None) == "<p open>0</p>"


def test_json_in_a_script_cannot_close_it_and_says_the_same() -> None:
    text = script_json({"a": [HOSTILE, 1.5, None]})
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == {"a": [HOSTILE, 1.5, None]}


def test_what_no_page_can_show_is_replaced() -> None:
    assert escape("a\x00b\ud800c") == "a�b�c"
    assert json.loads(script_json("\udfff")) == "�"


def test_nan_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(float("nan"))


def test_a_table_has_caption_scopes_and_buttons_to_sort() -> None:
    columns = [Column("Run"), Column("Score", number=True, about="in <percent>")]
    text = data_table("All", columns, [["a", Cell("1.00", 1.0)], ["b", None]])
    assert "<caption>All</caption>" in text
    assert text.count('scope="col"') == 2
    assert text.count('scope="row"') == 2
    assert text.count("<button") == 2
    assert 'data-value="1.0"' in text
    assert 'title="in &lt;percent&gt;"' in text
    assert 'tabindex="0" role="region" aria-label="All"' in text


def test_a_row_has_as_many_cells_as_there_are_columns() -> None:
    with pytest.raises(ValueError, match="zip"):
        data_table("All", [Column("a")], [["1", "2"]])
