"""Files of questions on passages: every shape that is read, and every fault that is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.errors import DataError
from finetune.task.interface import Example, GoldAnswer
from tasks.squad.files import MovedAnswer, read_hub_rows, read_official, read_own
from tasks.squad.warnings import moved_answers, unsure_answers

CONTEXT = "The cat sat on the mat.\nThe cat 😺 ran. "
ANSWER = {"text": "cat", "answer_start": 4}
Save = Callable[..., Path]


def question(known: Any = "q1", *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": known, "question": " Who sat? ", "answers": list(answers), **more}


def official(*questions: dict[str, Any], version: Any = "1.1", context: Any = CONTEXT) -> Any:
    paragraphs = [{"context": context, "qas": list(questions)}]
    return {"version": version, "data": [{"title": "Cats", "paragraphs": paragraphs}]}


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Write a document, or text as it stands, and name the file."""

    def write(content: Any, name: str = "squad.json") -> Path:
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        content = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


class TestOfficial:
    def test_question_is_read_as_it_stands(self, save: Save) -> None:
        path = save(official(question("q1", ANSWER, ANSWER), question("q2", ANSWER)))
        first, second = read_official(path, "1.1", labelled=True)
        gold = GoldAnswer("cat", 4)
        assert first == Example("q1", (" Who sat? ", CONTEXT), (gold, gold))
        assert second.id == "q2"

    def test_offsets_count_characters_and_not_bytes(self, save: Save) -> None:
        path = save(official(question("q1", {"text": "ran", "answer_start": 34})))
        (example,) = read_official(path, "1.1", labelled=True)
        assert example.label == (GoldAnswer("ran", 34),)
        assert not isinstance(example.label[0], MovedAnswer)

    def test_unanswerable_question_has_no_answer_and_its_plausible_ones_are_not_read(
        self, save: Save
    ) -> None:
        lure = question("q2", is_impossible=True, plausible_answers=[ANSWER])
        path = save(official(question("q1", ANSWER, is_impossible=False), lure, version="v2.0"))
        assert [e.label for e in read_official(path, "2.0", labelled=True)] == [
            (GoldAnswer("cat", 4),),
            (),
        ]

    def test_withheld_answers_are_no_label(self, save: Save) -> None:
        path = save(official(question("q1"), question("q2"), version="v2.0"))
        assert [e.label for e in read_official(path, "2.0", labelled=False)] == [None, None]

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("name", ["squad.json", "squad.json.gz"])
    def test_compression_line_ends_and_mark_do_not_matter(
        self, save: Save, end: str, name: str
    ) -> None:
        text = "\ufeff" + json.dumps(official(question("q1", ANSWER)), indent=1).replace("\n", end)
        (example,) = read_official(save(text, name), "1.1", labelled=True)
        assert example.texts == (" Who sat? ", CONTEXT)

    @pytest.mark.parametrize("context", ["", "x" * 100_000, "e\u0301 שלום عربي\u200f"])
    def test_any_context_is_read(self, save: Save, context: str) -> None:
        path = save(official(question(is_impossible=True), version="v2.0", context=context))
        assert read_official(path, "2.0", labelled=True)[0].texts[1] == context


class TestVersion:
    def test_is_read_from_the_file(self, save: Save) -> None:
        second = official(question("q1", is_impossible=True), version="v2.0")
        with pytest.raises(
            DataError,
            match=r"squad\.json: expected SQuAD 1\.1, got 2\.0 \(version 'v2\.0', 1 of 1 "
            r"questions unanswerable\); run `finetune squad 2\.0` or name a file of 1\.1",
        ):
            read_official(save(second), "1.1", labelled=True)
        first = official(question("q1", ANSWER))
        with pytest.raises(DataError, match=r"expected SQuAD 2\.0, got 1\.1 \(version '1\.1', 0"):
            read_official(save(first), "2.0", labelled=True)

    @pytest.mark.parametrize(
        ("version", "questions", "expected"),
        [
            ("v1.1", [question("q1", ANSWER)], "1.1"),
            (2.0, [question("q1", ANSWER)], "2.0"),
            (None, [question("q1", ANSWER)], "1.1"),
            (None, [question("q1", ANSWER, is_impossible=False)], "2.0"),
            ("1.1", [question("q1", ANSWER, is_impossible=False)], "1.1"),
            ("1.1", [question("q1", is_impossible=True)], "2.0"),  # what it holds goes first
            ("my own", [question("q1", is_impossible=True)], "2.0"),
        ],
    )
    def test_follows_from_name_and_flags(
        self, save: Save, version: Any, questions: list[Any], expected: str
    ) -> None:
        path = save(official(*questions, version=version))
        assert len(read_official(path, expected, labelled=True)) == 1
        other = {"1.1": "2.0", "2.0": "1.1"}[expected]
        with pytest.raises(DataError, match=f"expected SQuAD {other}, got {expected}"):
            read_official(path, other, labelled=True)

    def test_withheld_file_without_a_version_is_read_as_either(self, save: Save) -> None:
        path = save(official(question("q1"), version=None))
        assert all(read_official(path, version, labelled=False) for version in ("1.1", "2.0"))


class TestOffsets:
    @pytest.mark.parametrize(
        ("start", "found"), [(5, 4), (0, 4), (27, 28), (17, 28), (-3, 4), (9_999, 28), (16, 4)]
    )
    def test_nearest_occurrence_is_taken_and_marked(
        self, save: Save, start: int, found: int
    ) -> None:
        path = save(official(question("q1", {"text": "cat", "answer_start": start})))
        (example,) = read_official(path, "1.1", labelled=True)
        assert example.label == (GoldAnswer("cat", found),)
        assert isinstance(example.label[0], MovedAnswer)

    @given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=3), st.integers(-5, 40))
    def test_answer_is_what_the_context_holds_there(
        self, context: str, text: str, start: int
    ) -> None:
        row = {"id": "q1", "question": "?", "context": context}
        row["answers"] = [{"text": text, "answer_start": start}]
        places = [at for at in range(len(context)) if context.startswith(text, at)]
        if not places:
            with pytest.raises(DataError, match="in its context at character"):
                read_hub_rows([row], "hub")
            return
        gold = read_hub_rows([row], "hub")[0].label[0]
        assert gold.text == text
        assert gold.start in places
        assert abs(gold.start - start) == min(abs(at - start) for at in places)
        assert isinstance(gold, MovedAnswer) == (start not in places)


class TestWarnings:
    CONTEXT = "In 1999 the mill closed. The owner sold it in 1999 to Ada Holm, who kept it."

    def moved(self, *starts: float, text: str = "1999") -> list[str]:
        rows = [
            {"id": n, "question": "?", "context": self.CONTEXT, "answers": [ANSWER | change]}
            for n, start in enumerate(starts)
            for change in [{"text": text, "answer_start": start}]
        ]
        return moved_answers(read_hub_rows(rows, "hub"))

    def test_whole_number_with_a_point_is_a_place(self) -> None:
        assert not self.moved(3.0, 46)

    def test_moves_to_one_of_several_places_are_told(self) -> None:
        (message,) = self.moved(0, 0, 0)
        assert "3 of 3 answers (100%) are not where answer_start says" in message
        assert "3 to one of several places with the same text, 0 by more than 20" in message
        assert "answer_start is 0 for all of them; the first is '1999' of question 0" in message
        assert "said to be at 0, taken at 3;" in message

    def test_moves_that_are_alike_are_told_with_their_distance(self) -> None:
        (message,) = self.moved(50, 50, text="Ada Holm")
        assert "0 to one of several places" in message
        assert "all of them by +4 characters" in message

    def test_far_moves_are_told(self) -> None:
        (message,) = self.moved(54, 0, *[54] * 100, text="Ada Holm")
        assert "1 of 102 answers (1%)" in message
        assert "1 by more than 20 characters" in message

    def test_a_few_slips_are_not(self) -> None:
        assert not self.moved(53, *[54] * 100, text="Ada Holm")


class TestOwn:
    ROWS = (
        {**question("q1", ANSWER), "context": CONTEXT},
        {**question(7), "context": CONTEXT},
    )
    EXPECTED = [
        Example("q1", (" Who sat? ", CONTEXT), (GoldAnswer("cat", 4),)),
        Example(7, (" Who sat? ", CONTEXT), ()),
    ]

    def test_row_a_question_is_read_from_any_form(self, save: Save) -> None:
        lines = "\r\n".join(json.dumps(row) for row in self.ROWS)
        contents: list[tuple[Any, str]] = [
            (lines, "own.jsonl"),
            (lines, "own.jsonl.gz"),
            (list(self.ROWS), "own.json"),
            ({"data": list(self.ROWS)}, "own.json"),
            (official(question("q1", ANSWER), question(7)), "own.json"),
            (json.dumps(official(question("q1", ANSWER), question(7))["data"][0]), "own.jsonl"),
        ]
        for content, name in contents:
            assert read_own(save(content, name), labelled=True) == self.EXPECTED

    def test_answers_may_be_lists_side_by_side_as_on_the_hub(self, save: Save) -> None:
        first = self.ROWS[0] | {"answers": {"text": ["cat"], "answer_start": [4]}}
        second = self.ROWS[1] | {"answers": {"text": [], "answer_start": []}}
        assert read_own(save([first, second]), labelled=True) == self.EXPECTED
        assert read_hub_rows([first, second], "hub") == self.EXPECTED

    def test_questions_without_any_answer_are_withheld(self, save: Save) -> None:
        bare = {"id": "q1", "question": "Who?", "context": CONTEXT}
        path = save([bare])
        assert read_own(path, labelled=False) == [Example("q1", ("Who?", CONTEXT))]
        with pytest.raises(DataError, match="they are withheld; name the file as --test"):
            read_own(path, labelled=True)
        mixed = save([self.ROWS[0], bare | {"id": "q2"}])
        with pytest.raises(
            DataError, match="question 'q2': expected answers as in .* say `answers: \\[\\]`"
        ):
            read_own(mixed, labelled=False)

    def test_fault_in_a_line_names_the_line(self, save: Save) -> None:
        lines = "\n".join(json.dumps(row) for row in [self.ROWS[0], {"id": "q2", "context": "x"}])
        with pytest.raises(
            DataError, match=r"own\.jsonl:2: question 'q2': expected the text 'question', got the"
        ):
            read_own(save(lines, "own.jsonl"), labelled=True)


PLACE = r"squad\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\]: "
HALF = '{"version": "1.1", "data": [{"paragraphs": [{"context": "x", "qas": [{"id": "q1", '
FAULTS: dict[str, tuple[Any, str]] = {
    "empty file": ("", r"squad\.json: expected questions as JSON, got an empty file"),
    "blank file": (" \r\n", "got an empty file"),
    "truncated": (HALF, r"squad\.json:1: expected JSON, got at column \d+ .*file complete\?"),
    "utf-16": (HALF.encode("utf-16"), "expected UTF-8, got the byte 0xff at offset 0; save"),
    "lines in json": ("{}\n{}", "squad.json:2: .* Extra data; a file with a row a line must end"),
    "nested too deeply": ("[" * 200_000, "expected JSON of SQuAD's shape, got"),
    "a list": ([], "expected the JSON of SQuAD, an object with a list 'data'; got a list"),
    "no data": ({"version": "1.1"}, "an object with a list 'data'; got an object"),
    "data is no list": ({"data": "x"}, "an object with a list 'data'"),
    "no questions": ({"data": []}, r"squad\.json: expected questions, got none"),
    "paragraphs is no list": (
        {"data": [{"paragraphs": {"a": 1}}]},
        r"data\[0\]: expected 'paragraphs' to be a list, got an object",
    ),
    "question is a text": (official("Who?"), PLACE + "expected an object, got a text"),
    "context missing": (
        {"data": [{"paragraphs": [{"qas": [question("q1", ANSWER)]}]}]},
        r"paragraphs\[0\]: expected the text 'context', got the fields qas",
    ),
    "context is a number": (official(question("q1"), context=3), "'context', got a number"),
    "id missing": ({"data": [{"question": "?"}]}, r"data\[0\]: expected the text 'id', got the"),
    "id empty": (official(question("")), PLACE + "expected an id, got an empty text"),
    "id is true": (official(question(True)), "expected the text 'id', got true or false"),
    "id doubled": (
        official(question("q1", ANSWER), question("q1", ANSWER)),
        r"qas\[1\]: expected an id of its own, got 'q1' a second time, first at .*data\[0\]\.par.*"
        r"qas\[0\]",
    ),
    "question is nothing": (
        official(question("q1", ANSWER, question=None)),
        PLACE + "question 'q1': expected the text 'question', got nothing",
    ),
    "half a character": (
        official(question("q1", ANSWER, question="a\ud83d")),
        "expected 'question' to be Unicode, got half of a surrogate pair at character 1",
    ),
    "answer not in context": (
        official(question("q1", {"text": "dog", "answer_start": 4})),
        "question 'q1': expected the answer 'dog' in its context at character 4, got it nowhere",
    ),
    "answer without text": (
        official(question("q1", {"answer_start": 4})),
        "question 'q1': expected the text 'text', got the fields answer_start",
    ),
    "answer without place": (
        official(question("q1", {"text": "cat"})),
        "question 'q1': expected answer_start, a whole number of .* 'cat'; got nothing",
    ),
    "answer with a part of a place": (
        official(question("q1", {"text": "cat", "answer_start": "4"})),
        'got "4"; write the number',
    ),
    "answer with a flag for a place": (
        official(question("q1", {"text": "cat", "answer_start": True})),
        "got true; write the number",
    ),
    "answer with half a character for a place": (
        official(question("q1", {"text": "cat", "answer_start": 4.5})),
        "got 4.5; write the number",
    ),
    "answer empty": (
        official(question("q1", {"text": "", "answer_start": 0})),
        "expected an answer, got an empty text; leave `answers` empty where",
    ),
    "answers are texts": (
        official(question("q1", answers=["cat"])),
        "expected answers to be a list of objects with 'text' and 'answer_start', got",
    ),
    "answers uneven": (
        official(question("q1", answers={"text": ["cat"], "answer_start": []})),
        "expected answers with lists 'text' and 'answer_start' of the same length",
    ),
    "impossible is a word": (
        official(question("q1", is_impossible="no")),
        "expected is_impossible true or false, got 'no'",
    ),
    "impossible but answered": (
        official(question("q1", ANSWER, is_impossible=True)),
        "expected no answers where is_impossible is true, got some",
    ),
    "possible but unanswered": (
        official(question("q1", is_impossible=False)),
        "expected answers where is_impossible is false, got none",
    ),
    "some answers missing": (
        official(question("q1", ANSWER), question("q2")),
        r"qas\[1\]: question 'q2': expected answers as in the other questions, got none; say "
        "`is_impossible: true`",
    ),
    "all answers withheld": (
        official(question("q1"), question("q2")),
        "expected answers, got none and no is_impossible in any of 2 questions: they are "
        "withheld; name the file as --test",
    ),
}


class TestFaults:
    @pytest.mark.parametrize("fault", FAULTS)
    def test_fault_is_one_line_that_names_file_and_place(self, save: Save, fault: str) -> None:
        content, message = FAULTS[fault]
        with pytest.raises(DataError, match=message) as caught:
            read_official(save(content), "1.1", labelled=True)
        assert "squad.json" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("fault", ["truncated", "utf-16", "empty file", "id doubled"])
    def test_own_files_are_checked_alike(self, save: Save, fault: str) -> None:
        content, message = FAULTS[fault]
        with pytest.raises(DataError, match=message):
            read_own(save(content), labelled=True)

    def test_half_a_compressed_file_is_an_error(self, save: Save, tmp_path: Path) -> None:
        path = save(official(question("q1", ANSWER)), "squad.json.gz")
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(DataError, match=r"squad\.json\.gz: expected a readable file, got"):
            read_official(path, "1.1", labelled=True)

    def test_file_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected a readable file, got: .*No such file"):
            read_official(tmp_path / "none.json", "1.1", labelled=True)


class TestPlainRows:
    """Own rows without ids or offsets, as people have them in tables."""

    def test_text_alone_is_taken_at_its_first_place(self, save: Save) -> None:
        rows = [
            {"question": "Who?", "context": CONTEXT, "answer": "cat"},
            {"question": "Where?", "context": CONTEXT, "answers": ["mat", "the mat"]},
            {"question": "Why?", "context": CONTEXT, "answers": ""},
        ]
        path = save("".join(json.dumps(row) + "\n" for row in rows), "own.jsonl")
        first, second, third = read_own(path, labelled=True)
        assert (first.id, first.label) == (0, (GoldAnswer("cat", 4),))
        assert second.label == (GoldAnswer("mat", 19), GoldAnswer("the mat", 15))
        assert (third.id, third.label) == (2, ())
        assert unsure_answers([first, second, third]) == [
            "1 of 3 answers without answer_start stands at several places of the context, such as "
            "'cat'; the first one is taken; add answer_start where another is meant"
        ]
        assert moved_answers([first, second]) == unsure_answers([second, third]) == []

    @pytest.mark.parametrize(("name", "separator"), [("own.csv", ","), ("own.tsv", "\t")])
    def test_table_has_a_question_a_row(self, name: str, separator: str, save: Save) -> None:
        rows = [("question", "context", "answer"), ("Who?", "The cat sat.", "cat")]
        path = save("".join(separator.join(row) + "\n" for row in rows), name)
        assert read_own(path, labelled=True) == [
            Example(0, ("Who?", "The cat sat."), (GoldAnswer("cat", 4),))
        ]

    @pytest.mark.parametrize("name", ["own.xlsx", "own.xlsm"])
    def test_workbook_has_a_question_a_row(self, name: str, tmp_path: Path) -> None:
        book = pytest.importorskip("openpyxl").Workbook()
        for row in (("question", "context", "answer"), ("Who?", "The cat sat.", "cat")):
            book.active.append(row)
        book.save(tmp_path / name)
        assert read_own(tmp_path / name, labelled=True) == [
            Example(0, ("Who?", "The cat sat."), (GoldAnswer("cat", 4),))
        ]

    @pytest.mark.parametrize(("yes", "no"), [("true", "false"), ("TRUE", "FALSE"), ("1", "0")])
    def test_cells_say_whether_there_is_no_answer(self, yes: str, no: str, save: Save) -> None:
        lines = [
            "question,context,answer,is_impossible",
            f"a,b c,b,{no}",
            f"d,b c,,{yes}",
            "e,b,b,",
        ]
        examples = read_own(save("\n".join(lines) + "\n", "own.csv"), labelled=True)
        assert [len(example.label or ()) for example in examples] == [1, 0, 1]
        lines[1] = "a,b c,b,maybe"
        with pytest.raises(DataError, match="expected is_impossible true or false, got 'maybe'"):
            read_own(save("\n".join(lines) + "\n", "own.csv"), labelled=True)

    def test_text_that_stands_nowhere_is_an_error(self, save: Save) -> None:
        row = {"question": "Who?", "context": CONTEXT, "answer": "dog"}
        with pytest.raises(DataError, match=r"own.jsonl:1: .*'dog' in its context.*got it nowhere"):
            read_own(save(json.dumps(row) + "\n", "own.jsonl"), labelled=True)

    def test_official_file_needs_its_ids(self, save: Save) -> None:
        content = official({"question": "?", "answers": [ANSWER]})
        with pytest.raises(DataError, match="expected the text 'id', got the fields"):
            read_official(save(content), "1.1", labelled=True)
