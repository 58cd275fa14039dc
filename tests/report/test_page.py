"""The page: all parts there, nothing runs that should not, what is broken is named."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from finetune.checkpoints.folder import load_checkpoint
from finetune.encoder.cost import cost
from finetune.errors import ConfigError, DataError
from finetune.report import Part, write_report
from finetune.report.markup import element
from finetune.runs.families import using_families
from tests.made.runs import HOSTILE, PLAN, class_rows, results, write_class_run, write_run
from tests.made.texts import write_json, write_lines

if TYPE_CHECKING:
    from tests.report.conftest import Made

PARTS = (
    "overview warnings data comparisons pretraining curves plan confusion calibration examples "
    "cost probes similarity heads alignment words frequency settings"
)


class Reader(HTMLParser):
    """Elements by name, scripts, and whether all that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "col", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def reader(made: Made) -> Reader:
    return Reader(made.text)


def test_every_part_is_there_in_the_contents_and_all_that_is_opened_is_closed(
    reader: Reader,
) -> None:
    assert not reader.open
    assert [part["id"] for part in reader.all("section")] == PARTS.split()
    links = [link["href"] for link in reader.all("a") if "class" not in link]
    assert links == [f"#{key}" for key in PARTS.split()]


def test_runs_trainings_and_tasks_are_counted_without_the_pretraining(made: Made) -> None:
    assert "<p>5 runs · 9 trainings · 3 tasks</p>" in made.text


def test_the_page_asks_for_no_other_file(made: Made, reader: Reader) -> None:
    for _, attributes in reader.found:
        assert not {"src", "srcset", "action"} & attributes.keys()
        assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in re.sub(r"<script.*?</script>", "", made.text, flags=re.DOTALL)
    assert "@import" not in made.text


def test_only_our_scripts_may_run_and_nothing_may_be_fetched(reader: Reader) -> None:
    (policy,) = (
        meta["content"]
        for meta in reader.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    running = [script for script in reader.scripts if not script.startswith(("{", "["))]
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in running
    ]
    assert re.findall("'sha256-([^']+)'", policy) == digests
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("style-src")[0]


def test_a_row_with_a_script_is_shown_and_not_run(made: Made, reader: Reader) -> None:
    assert HOSTILE not in made.text
    assert "&lt;/script&gt;&lt;script&gt;document.title=&#x27;run&#x27;" in made.text
    assert "img" not in {tag for tag, _ in reader.found}
    assert "<title>Made &lt;b&gt;runs&lt;/b&gt;</title>" in made.text


def test_every_plot_has_words_and_a_spec_that_is_json(reader: Reader) -> None:
    figures = reader.all("figure")
    specs = [json.loads(script) for script in reader.scripts if script.startswith("{")]
    assert len(specs) == len(figures) > 10
    plots = [one for one in reader.all("div") if one.get("class") == "plot"]
    assert len(plots) == len(figures)
    assert all(len(str(plot["aria-label"])) > 15 for plot in plots)


def spec_of(made: Made, title: str, behind: str = "") -> Any:
    after = made.text[made.text.index(behind) :]
    after = after[after.index(f'<span class="figure-title">{title}') :]
    found = re.search(r'class="spec">(.*?)</script>', after)
    assert found is not None
    return json.loads(found[1])


def test_curves_have_seeds_as_bands_and_phases(made: Made) -> None:
    spec = spec_of(made, "Training loss", 'data-group="made-classes"')
    assert [one["run"] for one in spec["series"]] == ["fine", "plain"]
    assert all(len(point) == 5 for point in spec["series"][0]["points"])
    assert [phase["label"] for phase in spec["phases"]["fine"]] == ["head", "embeddings..head"]
    assert spec["phases"]["fine"][1]["steps"] == [100, 300]


def test_pretraining_has_the_line_of_unigram_entropy(made: Made) -> None:
    assert spec_of(made, "Training loss")["rules"] == [{"y": 0.6, "label": "unigram entropy 0.60"}]


def test_runs_stand_beside_baseline_constant_answer_and_published_figures(made: Made) -> None:
    rows = spec_of(made, "Headline metric")["rows"]
    (row,) = (row for row in rows if row["task"] == "made/classes")
    assert [run["name"] for run in row["runs"]] == ["fine", "plain"]
    assert row["constant"] == 0.5
    assert row["anchors"] == [{"model": "A large one", "value": 0.9, "split": "test"}]
    assert "Someone, 2020" in made.text


def test_parameters_and_operations_are_those_that_describe_counts(made: Made) -> None:
    config = load_checkpoint(made.runs / "pretrained").encoder_config
    counted = cost(config, 16)  # the fine-tuning's max_length; it has no LM head
    rows = spec_of(made, "Where parameters", '<section id="cost"')["rows"]
    assert {row["part"] for row in rows} == counted.keys() - {"lm head"}
    text = made.text[made.text.index('<section id="cost"') :]
    every = sum(part.parameters for part in counted.values())
    assert f"at 128 tokens: {every:,} parameters" in text  # the pretraining has one
    for row in rows:
        part = counted[row["part"]]
        assert row["value"] == (part.parameters if row["measure"] == "parameters" else part.flops)


def test_spans_are_marked_in_the_passage_and_options_are_shown(made: Made) -> None:
    examples = made.text[made.text.index('<section id="examples"') :]
    assert re.search('<mark class="said"[^>]*>cat<', examples)
    assert re.search('<mark class="gold"[^>]*>noon<', examples)
    assert "When, 0?" in examples
    assert re.search("<b>A</b> <span[^>]*>in a box</span>.*✓ right", examples)


def test_what_is_broken_is_named_and_the_rest_is_shown(made: Made) -> None:
    assert made.report.runs == ("choices", "fine", "plain", "pretrained", "spans")
    told = {problem.place: problem.what for problem in made.report.problems}
    assert "expected JSON" in told["broken"]
    assert "no such folder" in next(what for place, what in told.items() if "nowhere" in place)
    listed = made.text[made.text.index('<section id="warnings"') :]
    assert all(place in listed for place in told)


def test_a_run_whose_data_are_gone_shows_ids(tmp_path: Path) -> None:
    write_class_run(tmp_path / "run", 0.5, (1,))
    with using_families({}):
        report = write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "texts of its examples are not shown: task 'made/classes'" in report.problems[0].what
    assert "ids and answers only" in report.path.read_text(encoding="utf-8")


def test_no_run_at_all_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected runs to report, got none \(.*no such folder"):
        write_report([tmp_path / "none"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_place_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file is a file; name a folder"):
        write_report([tmp_path], tmp_path / "file" / "page.html")
    with pytest.raises(ConfigError, match=r"is a folder; name a file"):
        write_report([tmp_path], tmp_path)


def test_ten_runs_take_less_than_two_megabytes(tmp_path: Path) -> None:
    for number in range(10):
        write_class_run(tmp_path / f"run-{number}", 0.5, (1, 2, 3))
    page = write_report([tmp_path], tmp_path / "page.html").path
    assert page.stat().st_size < 2_000_000


def test_other_rooms_hand_in_parts_with_a_script_of_their_own(tmp_path: Path, made: Made) -> None:
    part = Part("inside", "Inside", element("p", "<b>"), script="'mine';", style="#inside {}")
    page = write_report([made.runs], tmp_path / "p.html", more=[part]).path
    text = page.read_text(encoding="utf-8")
    assert "<p>&lt;b&gt;</p></section>" in text
    assert "<script>'mine';</script>" in text
    assert "#inside {}" in text
    assert base64.b64encode(hashlib.sha256(b"'mine';").digest()).decode() in text


JUNK = (None, 1, "x", [], {}, [1], {"a": None})
DAMAGED_ROWS: tuple[dict[str, Any], ...] = (
    {},
    {"id": 1},
    {"id": [], "prediction": "a"},
    {"id": 1, "prediction": None, "label": "a"},
    {"id": 1, "prediction": "a", "label": "a", "probabilities": 1},
    {"id": 1, "prediction": ["a"], "label": 1},
    {"id": 1, "prediction": "a", "nbest": 1, "answers": [{}]},
    {"id": 1, "prediction": "a", "nbest": [1], "answers": [{"text": "b"}]},
)


def test_whatever_is_damaged_the_rest_is_shown(tmp_path: Path) -> None:
    number = 0
    whole = results("0", 1, {"accuracy": 0.5}, plan=PLAN, caches=[])
    for key in whole:
        for value in JUNK:
            number += 1
            folder = tmp_path / "runs" / f"run-{number}"
            write_run(folder, f"{number}", {"accuracy": 0.5}, class_rows(1, 0.5)[:3], plan=PLAN)
            told = {**whole, "task": f"made/{number}", key: value}
            write_json(folder / "results.json", told)
    for row in DAMAGED_ROWS:
        number += 1
        folder = tmp_path / "runs" / f"run-{number}"
        write_run(folder, f"{number}", {"accuracy": 0.5}, [row])
        write_lines(folder / "metrics.jsonl", [{"step": 1, "train/loss": "x", "lr/a": [], "b": {}}])
    page = write_report([tmp_path / "runs"], tmp_path / "page.html")
    assert len(page.runs) == number
    assert page.problems
    text = page.path.read_text(encoding="utf-8")
    assert all(f"run-{n}<" in text for n in range(1, number + 1))
