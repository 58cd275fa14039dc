"""The table of `make bench`: its rows, its arithmetic, what an interrupt leaves."""

from __future__ import annotations

import importlib
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delenv("FINETUNE_DATA", raising=False)
    return importlib.import_module("bench")


@pytest.fixture
def here(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Turns are taken in this process: others take seconds to import what they need."""

    class Here(importlib.import_module("turns").Processes):  # type: ignore[misc, name-defined]
        def take_rounds(self, contest: Any) -> dict[str, list[float]]:
            costs = {}
            for name, place in contest.contestants.items():
                folder = tmp_path / f"{contest.name.replace(',', '')} {name}"
                folder.mkdir()
                module, function = place.split(":")
                settings = {**contest.settings, "contestant": name, "folder": str(folder)}
                turn = getattr(importlib.import_module(module), function)(
                    {**settings, "threads": self.threads}
                )
                costs[name] = [turn() for _ in range(contest.rounds)]
            return costs

    monkeypatch.setattr(bench, "Processes", Here)
    made = importlib.import_module("finetuning_made")
    monkeypatch.setattr(made, "find_spec", lambda _: None)  # random weights, not the installed ones


def check_table(text: str, rows: list[Any]) -> None:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert lines[0].split(" | ")[5:] == ["ratio", "limit", "spread", "rounds |"]
    assert len(lines) == 1 + len(rows)
    for line, row in zip(lines[1:], rows, strict=True):
        assert line.startswith(f"| {row['row']} | {row['threads']} | ")
        assert f" | {row['peer']} | " in line
        assert f"**{row['ratio']:.2f}**" in line
        assert row["spread"][0] <= row["ratio"] <= row["spread"][1]
        assert min(row["ours"], row["theirs"], row["ratio"]) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("mlm", 1),
        ("loop", 2),
        ("predicting", 3),
        ("corpus", 5),
        ("finetuning", 2),
        ("memory", 1),
    ],
)
def test_each_kind_has_its_rows(
    bench: Any, kind: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind in ("finetuning", "memory"):
        pytest.importorskip("accelerate", reason="the extra bench is not installed")
    out = tmp_path / "out" / "bench.json"
    assert bench.main(["--tiny", "--only", kind, "--threads", "1", "--out", str(out)]) == 0
    torch.set_flush_denormal(False)
    record = json.loads(out.read_text())
    assert len(record["rows"]) == count
    assert record["versions"]["torch"] == torch.__version__
    assert capsys.readouterr().out.strip().endswith(out.with_suffix(".md").read_text().strip())
    check_table(out.with_suffix(".md").read_text(), record["rows"])
    with_limit = {"mlm", "finetuning"}
    assert all(("limit" in row) == (kind in with_limit) for row in record["rows"])


def test_contestants_are_processes_and_rows_that_are_there_are_kept(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "own_contest.py").write_text(
        "import os\n"
        "def ours(settings):\n"
        "    print('not in the table')\n"
        "    assert os.environ['OMP_NUM_THREADS'] == str(settings['threads'])\n"
        "    return lambda: float(os.getpid())\n"
        "def fails(settings):\n"
        "    raise RuntimeError('no such peer')\n"
    )
    monkeypatch.syspath_prepend(own)
    turns = importlib.import_module("turns")
    peer = "own_contest:ours"

    def contests(options: Any, scale: Any, folder: Path) -> list[Any]:
        names = {"ours": "own_contest:ours", "a": peer}
        return [turns.Contest(name, names, rounds=2) for name in ("first", "second")]

    monkeypatch.setitem(bench.KINDS, "mlm", contests)
    out = tmp_path / "bench.json"
    words = ["--tiny", "--only", "mlm", "--out", str(out)]
    assert bench.main([*words, "--threads", "1,2"]) == 0
    first = json.loads(out.read_text())["rows"]
    assert [(row["row"], row["threads"]) for row in first] == [
        (name, threads) for name in ("first", "second") for threads in (1, 2)
    ]
    processes = {row[side] for row in first for side in ("ours", "theirs")}
    assert len(processes) == 4  # of each number of threads, one a contestant, whatever the contest
    assert os.getpid() not in processes

    peer = "own_contest:fails"  # is not asked for a row that is there
    kept = first[:2] + first[3:]
    out.write_text(json.dumps({"rows": kept}))
    assert bench.main([*words, "--threads", "1,2", "--resume"]) == 1
    rows = json.loads(out.read_text())["rows"]
    assert [row for row in rows if "failed" not in row] == kept
    output = capsys.readouterr()
    assert "| second | 1 |  | a |  | failed: RuntimeError: no such peer |" in output.out
    assert "not in the table" not in output.out + output.err
    peer = "own_contest:ours"
    assert bench.main([*words, "--threads", "1,2", "--resume"]) == 0  # a failed row is measured
    assert json.loads(out.read_text())["rows"][0] == first[0]

    monkeypatch.setitem(bench.KINDS, "mlm", lambda *_: contests(*_)[:1])
    assert bench.main([*words, "--threads", "1", "--resume"]) == 0  # others stay
    assert [row["threads"] for row in json.loads(out.read_text())["rows"]] == [1, 2, 1, 2]
    assert bench.main([*words, "--threads", "1"]) == 0
    assert [row["threads"] for row in json.loads(out.read_text())["rows"]] == [1]


def test_the_ratio_is_the_median_of_the_rounds_own_ratios(bench: Any) -> None:
    turns = importlib.import_module("turns")
    contest = turns.Contest(
        "steps", {"ours": "", "a": "", "limit": ""}, unit="tokens/s", amount=10, rounds=3
    )
    costs = {"ours": [1.0, 2.0, 4.0], "a": [4.0, 4.0, 4.0], "limit": [0.5, 1.0, 1.0]}
    (line,) = turns.lines_of(contest, costs)
    assert (line["ratio"], line["spread"], line["limit"]) == (2.0, [1.0, 4.0], 4.0)
    assert (line["ours"], line["theirs"]) == (5.0, 2.5)


def test_the_products_of_a_step_are_those_of_the_encoder(bench: Any) -> None:
    """Counted as `finetune describe` counts them, but for what padding and a head leave out."""
    products = importlib.import_module("products")
    from finetune.encoder import EncoderConfig
    from finetune.encoder.cost import forward_flops_per_token, unread_flops

    config = EncoderConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40,
    )  # fmt: skip
    whole = products.Step(rows=4, length=10, tokens=40, named=8)
    expected = forward_flops_per_token(config, 10, lm_fraction=0.2) - unread_flops(config, 10, 0.2)
    assert products.flops(config, whole) == pytest.approx(40 * expected)
    head = products.Step(rows=4, length=10, tokens=30)
    keys_and_values, others = 4 * 30 * 16 * 16, 4 * 4 * 16 * 16 + 4 * 4 * 16 * 40
    last = keys_and_values + others + 2 * 2 * 4 * 10 * 16
    first = 8 * 30 * 16 * 16 + 4 * 30 * 16 * 40 + 2 * 2 * 4 * 10 * 10 * 16
    assert products.flops(config, head) == first + last
    assert products.products_turn(config, [whole, head])() > 0


def test_the_table_is_put_into_the_readme(bench: Any, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text((BENCHMARKS / "README.md").read_text())
    from finetune.machine.circumstances import circumstances

    row = {"row": "steps", "threads": 1, "peer": "a", "unit": "s", "ours": 1.0, "theirs": 2.0}
    row |= {"ratio": 2.0, "spread": [1.0, 3.0], "rounds": 3}
    for ratio in (2.0, 2.5):
        record = {**circumstances(), "command": "bench", "rows": [{**row, "ratio": ratio}]}
        bench.write_readme(record, readme)
    text = readme.read_text()
    assert "**2.50** |  | 1.00 to 3.00 | 3 |" in text
    assert "**2.00**" not in text
    for heading in ("## The last table", "## The other scripts"):
        assert text.count(heading) == 1
    assert text.count(bench.BEGIN) == text.count(bench.END) == 1


def test_options_that_cannot_be_are_refused(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (["--only", "mlm,x"], "--only: expected of mlm, "),
        (["--data", str(tmp_path)], "--data: expected a folder with glue_data/, got"),
    ):
        with pytest.raises(SystemExit) as error:
            bench.main(words)
        assert error.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow  # processes that import transformers
def test_the_whole_table_in_processes(bench: Any, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    status = bench.main(["--tiny", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    is_installed = find_spec("accelerate") is not None
    failed = {row["row"] for row in rows if "failed" in row}
    with_trainer = {row["row"] for row in rows if row["kind"] in ("finetuning", "memory")}
    assert failed == (set() if is_installed else with_trainer)
    assert status == (0 if is_installed else 1)
    assert {row["kind"] for row in rows} == set(bench.KINDS)
