"""Files of `finetune inspect` as parts: known by their fields, drawn, escaped, or refused."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.errors import DataError
from finetune.report.inside import KINDS, inside_parts
from finetune.report.parts import Part
from tests.made.inside import MADE, heads, probe, similarity, write_inside
from tests.made.runs import HOSTILE
from tests.made.texts import write_json

KEYS = "probes similarity heads attention alignment words frequency"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Part]:
    folder = write_inside(tmp_path_factory.mktemp("inside"))
    return {part.key: part for part in inside_parts([folder])}


def part_of(file: Path, content: object) -> Part:
    write_json(file, content)
    (part,) = inside_parts([file])
    return part


def specs(part: Part) -> list[Any]:
    found = re.findall(r'type="application/json" class="spec">(.*?)</script>', part.body)
    return [json.loads(text) for text in found]


def rows(part: Part, table: int) -> list[list[str]]:
    body = re.findall(r"<tbody>(.*?)</tbody>", part.body)[table]
    lines = re.findall(r"<tr>(.*?)</tr>", body)
    return [
        [re.sub("<.*?>", "", cell) for cell in re.split("(?<=</t[hd]>)", line)][:-1]
        for line in lines
    ]


def test_every_kind_is_known_by_its_fields_whatever_the_file_is_called(tmp_path: Path) -> None:
    assert set(MADE) == set(KINDS)
    files = []
    for number, make in enumerate(MADE.values()):
        files.append(tmp_path / f"{number}.json")
        write_json(files[-1], make())
    assert [part.key for part in inside_parts(files)] == KEYS.split()


def test_a_folder_stands_for_the_files_in_it_and_each_is_taken_once(
    tmp_path: Path, parts: dict[str, Part]
) -> None:
    assert list(parts) == KEYS.split()
    folder = write_inside(tmp_path / "some", "heads", "probe")
    write_json(folder / "other.json", {})
    found = inside_parts([folder, folder / "heads.json"])
    assert [part.key for part in found] == ["probes", "heads"]
    assert found[1].body.count("<h3>") == 1
    assert inside_parts([]) == []


def test_scores_are_lines_by_layer_over_runs_or_over_seeds_with_the_baseline(
    parts: dict[str, Part],
) -> None:
    scores, shares = specs(parts["probes"])
    assert scores["names"] == ["embeddings", "block 1", "block 2", "block 3", "scalar mix"]
    assert scores["short"] == ["emb", "1", "2", "3", "mix"]
    assert (scores["apart"], scores["rules"]) == (
        "scalar mix",
        [{"y": 0.5, "label": "trivial baseline"}],
    )
    fine, deep, untrained = scores["series"]
    name, mean, deviation = fine["points"][1]
    assert name == "block 1"
    assert mean == pytest.approx(0.65)
    assert deviation == pytest.approx(0.1 / 2**0.5)  # of the means of two runs, 0.6 and 0.7
    assert [point[0] for point in fine["points"]][-1] == "scalar mix"
    assert len(deep["points"]) == 5
    assert untrained["colour"] == "var(--baseline)"
    assert [len(one["points"]) for one in shares["series"]] == [3, 4, 3]


def test_a_table_has_the_numbers_of_the_probes(parts: dict[str, Part]) -> None:
    table = rows(parts["probes"], 0)
    assert table[1][:2] == ["block 1", "65.00 ± 7.07"]
    assert table[3] == ["block 3", "–", "100.00 ± 0.00", "–"]
    assert table[4][:2] == ["scalar mix", "85.00 ± 0.00"]
    assert table[5] == ["trivial baseline", "50.00", "50.00", "50.00"]
    assert rows(parts["probes"], 1)[3] == ["block 3", "–", "25.00 ± 0.00", "–"]
    assert "1,200 examples to learn from, 30 of the validation split" in parts["probes"].body
    assert "over the runs of fine (2); else over the probes&#x27; own seeds" in parts["probes"].body


def test_similarity_is_a_line_a_pair_of_groups_and_a_matrix_of_their_means(
    parts: dict[str, Part],
) -> None:
    part = parts["similarity"]
    (spec,) = specs(part)
    assert [one["name"] for one in spec["series"]] == ["a – b", "within b"]
    assert spec["domain"] == [0, 1]
    assert rows(part, 0)[0] == ["embeddings", "0.800 ± 0.141", "1.000"]
    assert rows(part, 1) == [["emb", "0.80", "0.30"], ["1", "0.20", "–"]]  # NaN is a dash
    assert "rows – columns, mean of 2 pairs" in part.body
    assert "1,234 examples are compared" in part.body


def test_without_names_of_groups_every_pair_has_its_own_matrix(tmp_path: Path) -> None:
    content = similarity()
    del content["names"]
    part = part_of(tmp_path / "similarity.json", content)
    assert "runs/a – b/seed-1" in part.body
    assert part.body.count("<caption>") == 4


def test_heads_are_matrices_beside_a_uniform_head_and_a_table(parts: dict[str, Part]) -> None:
    part = parts["heads"]
    assert part.body.count('<table class="matrix heat">') == 8
    assert rows(part, 0) == [["1", "0.20", "0.30"], ["2", "0.30", "0.40"]]
    assert rows(part, 4) == [["1", "24.0", "34.0"], ["2", "34.0", "44.0"]]
    assert "--share:1.000" in part.body
    assert "attention on [SEP], %" in part.body
    assert "a uniform head: 12.5" in part.body
    assert rows(part, 8)[-1][:2] == ["uniform", "0.12"]
    assert "Michel et al., 2019" in str(part.lead)


def test_many_heads_are_set_smaller(tmp_path: Path) -> None:
    part = part_of(tmp_path / "heads.json", heads(12, 12))
    assert part.body.count('<table class="matrix heat small">') == 8
    assert 'class="matrices wide"' in part.body


def test_loss_stands_beside_that_of_frequencies_and_empty_bins_are_left_out(
    parts: dict[str, Part],
) -> None:
    (spec,) = specs(parts["frequency"])
    assert spec["names"] == ["never", "1–9", "1k–9k"]
    assert [point[:2] for point in spec["series"][0]["points"]] == [["1–9", 3.25], ["1k–9k", 3.25]]
    assert rows(parts["frequency"], 0)[0] == ["never", "1,234", "0", "–", "–", "–"]
    assert rows(parts["frequency"], 0)[-1] == ["all", "–", "50", "3.250", "6.500", "40.0"]


def test_an_alignment_is_a_matrix_of_what_was_written_by_what_was_read(
    parts: dict[str, Part],
) -> None:
    part = parts["alignment"]
    assert rows(part, 0) == [["dog", "50", "50"], ["[SEP]", "25", "75"]]
    assert "--share:0.750" in part.body
    assert "runs/written" in part.body


def test_nearest_words_are_tables(parts: dict[str, Part]) -> None:
    assert "<caption>dogs (dog s)</caption>" in parts["words"].body
    assert rows(parts["words"], 0)[1] == ["cat", "0.250"]


def test_what_a_file_holds_is_text(parts: dict[str, Part]) -> None:
    for key in ("probes", "heads", "words", "attention", "alignment"):
        assert HOSTILE not in parts[key].body
        assert "<img" not in parts[key].body


def test_a_map_of_another_shape_is_told(tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    write_json(file, MADE["attention"]() | {"weights": [[[[0.5, 0.5]]]]})
    with pytest.raises(DataError, match=r"2 tokens twice, got shape \(1, 1, 1, 2\)\); inspect"):
        inside_parts([file])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"a\.json: expected JSON, got Expecting"),
        ("[1]", r"expected a file of `finetune inspect` \(attention\.json, .*got no fields but"),
        ('{"task": 1, "seed": 2}', r"got one with other fields \(task, seed\); name one that"),
        ("{}", r"got one with other fields \(none\)"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        inside_parts([tmp_path / "a.json"])


def test_a_missing_file_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.json: cannot be read: No such file"):
        inside_parts([tmp_path / "gone.json"])
    with pytest.raises(DataError, match=r"expected a folder with files of .*, got none"):
        inside_parts([tmp_path])


JUNK = (None, "x", [], {}, [1])


def damaged(content: Any, path: tuple[Any, ...] = ()) -> Iterator[Callable[[Any, Any], None]]:
    """Ways to put a value in place of one of the content, at any depth."""
    places = content.items() if isinstance(content, dict) else enumerate(content[:1])
    for key, value in places:
        here = (*path, key)

        def put(into: Any, junk: Any, here: tuple[Any, ...] = here) -> None:
            for step in here[:-1]:
                into = into[step]
            into[here[-1]] = junk

        yield put
        if isinstance(value, dict | list):
            yield from damaged(value, here)


def errors_of(file: Path) -> list[str]:
    try:
        inside_parts([file])
    except DataError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("kind", MADE)
def test_whatever_is_damaged_is_an_error_in_one_line_or_shown(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file.json"
    whole = MADE[kind]()
    told = []
    for put in damaged(whole):
        for junk in JUNK:
            content = copy.deepcopy(whole)
            put(content, junk)
            write_json(file, content)
            told += errors_of(file)
    assert len(told) > 20
    assert all(text.startswith(str(file)) and "\n" not in text for text in told)


def test_one_group_says_what_its_deviation_is_over(tmp_path: Path) -> None:
    content = probe()
    content["groups"] = {"deep": content["groups"][HOSTILE]}
    part = part_of(tmp_path / "probe.json", content)
    assert "one standard deviation, over the probes&#x27; own seeds." in part.body
