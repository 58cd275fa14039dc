"""The benchmarks of unfreezing: their arithmetic, their samples, their table, and a smoke run."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finetune.encoder import Encoder
from finetune.errors import ConfigError, DataError
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan
from tests.made.nets import tiny_config

ROOT = Path(__file__).parent.parent
SHAPE = tiny_config(vocab_size=80, hidden_size=32)


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module(name)


@pytest.fixture
def unfreezing(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("unfreezing", monkeypatch)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("ulmfit_grid", monkeypatch)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("ulmfit_sample", monkeypatch)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported("ulmfit_table", monkeypatch)


@pytest.mark.parametrize(
    ("policy", "of_uncached", "of_full"),
    [("gradual", 0.84, 0.56), ("head", 0.10, None), ("lp-ft", 0.71, 0.42)],
)
def test_the_limits_are_those_of_the_arithmetic(
    unfreezing: Any, policy: str, of_uncached: float, of_full: float | None
) -> None:
    found = unfreezing.limits(unfreezing.POLICIES[policy], 6)
    assert found[0] == pytest.approx(of_uncached, abs=0.005)
    assert of_full is None or found[1] == pytest.approx(of_full, abs=0.005)


def test_work_counts_passes_through_a_block(unfreezing: Any) -> None:
    def work(policy: str, *, cached: bool, epochs: int = 1) -> Any:
        plan = make_plan(UnfreezeConfig(policy), 6, epochs)
        return unfreezing.work(plan, epochs, cached=cached)

    assert work("all", cached=False) == work("all", cached=True) == 18  # nothing is frozen
    assert work("head", cached=False, epochs=3) == 18
    assert work("head", cached=True, epochs=3) == 6  # the filling
    assert work("top:2", cached=False) == 6 + 3  # two blocks backward, the lower one for half
    assert work("top:2", cached=True) == 4 + 2 + 3


@pytest.mark.parametrize("name", ["cola", "mrpc", "rte"])
def test_made_texts_have_the_lengths_of_the_real_ones(unfreezing: Any, name: str) -> None:
    rows, quantiles = unfreezing.TOKENS[name]
    texts = unfreezing.made_texts(name, 30522)
    lengths = texts.lengths
    assert len(lengths) == rows
    assert abs(sorted(lengths.tolist())[rows // 2] - quantiles[10]) <= 1
    assert lengths.min() >= quantiles[0]
    assert lengths.max() <= quantiles[-1]
    part = texts.part(0.1)
    assert len(part.features) == round(0.1 * rows)
    assert part.lengths.mean() == pytest.approx(lengths.mean(), rel=0.1)
    assert part.features == texts.part(0.1).features


def test_a_bound_is_judged_in_its_direction(unfreezing: Any) -> None:
    assert unfreezing.judged(0.1, 0.15) == "0.15 met"
    assert unfreezing.judged(0.2, 0.15) == "0.15 MISSED"
    assert unfreezing.judged(31.0, 30, least=True) == "30 met"
    assert unfreezing.judged(0.2, None) == "-"


def test_both_sides_train_alike_and_the_second_pays_nothing(
    unfreezing: Any, tmp_path: Path
) -> None:
    import torch

    device, texts = torch.device("cpu"), unfreezing.made_texts("cola", 80).part(0.01)
    shape = replace(SHAPE, max_position_embeddings=64)
    cache = (tmp_path, unfreezing.CacheConfig())
    policy = unfreezing.Policy(4, UnfreezeConfig("gradual"))
    plain = unfreezing.Contestant(policy, texts, shape, device)
    cached = unfreezing.Contestant(policy, texts, shape, device, cache=cache)
    unfreezing.take_turns([plain, cached])
    assert [len(one.epochs) for one in (plain, cached)] == [4, 4]
    assert plain.filling is None
    assert plain.encoded == 0
    assert cached.encoded == len(texts.features)
    for name, tensor in plain.module.state_dict().items():  # rounding apart
        torch.testing.assert_close(tensor, cached.module.state_dict()[name], atol=1e-3, rtol=1e-3)
    other = unfreezing.Contestant(policy, texts, shape, device, cache=cache, seed=2)
    other.open()
    assert other.encoded == 0


@pytest.mark.slow
def test_the_time_is_taken_of_every_policy(
    unfreezing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--size", "2x32", "--fraction", "0.005", "--threads", "1", "--sets", "cola,rte"]
    unfreezing.main([*words, "--folder", str(tmp_path), "--json", str(tmp_path / "all.json")])
    figures = json.loads((tmp_path / "all.json").read_text())
    assert [one["texts"] for one in figures] == ["cola", "rte"]
    for one in figures:
        assert [row["policy"] for row in one["policies"]] == ["gradual", "head", "lp-ft"]
        assert all(row["cached"]["clock"] > row["filling"]["clock"] for row in one["policies"])
        encoded = [row["encoded"] for row in one["sharing"]]
        assert encoded[0] > 0
        assert set(encoded[1:]) == {0}
    assert "| gradual | 8 |" in capsys.readouterr().out


def rows(counts: dict[str, int]) -> list[Any]:
    return [
        SimpleNamespace(id=f"{label}/{number}", label=label)
        for label, count in counts.items()
        for number in range(count)
    ]


def test_a_sample_has_as_many_of_each_class_in_the_files_order(samples: Any) -> None:
    every = rows({"neg": 30, "pos": 40})
    found = samples.sample(every, 20, 0)
    assert [row.label for row in found] == ["neg"] * 10 + ["pos"] * 10
    assert found == sorted(found, key=every.index)
    assert found == samples.sample(every, 20, 0)
    assert found != samples.sample(every, 20, 1)
    with pytest.raises(DataError, match="expected 35 texts of class neg to draw from, got 30"):
        samples.sample(every, 70, 0)


def test_a_sample_of_imdb_is_written_split_by_split(samples: Any, tmp_path: Path) -> None:
    for split, label in ((s, c) for s in ("train", "test") for c in ("neg", "pos")):
        folder = tmp_path / "imdb" / "aclImdb" / split / label
        folder.mkdir(parents=True)
        for number in range(20):
            (folder / f"{number}_1.txt").write_text(f"{split} {label} {number}", encoding="utf-8")
    unlabelled = tmp_path / "imdb" / "aclImdb" / "train" / "unsup"
    unlabelled.mkdir()
    (unlabelled / "0_0.txt").write_text("unlabelled 0", encoding="utf-8")
    samples.write_imdb(tmp_path, tmp_path / "sample", [20, 2, 10, 1])
    written = {
        part: [
            json.loads(line)["text"]
            for line in (tmp_path / "sample" / f"{part}.jsonl").read_text().splitlines()
        ]
        for part in ("train", "validation", "test", "lm")
    }
    assert {part: len(texts) for part, texts in written.items()} == {
        "train": 20,
        "validation": 2,
        "test": 10,
        "lm": 21,
    }
    assert not set(written["train"]) & set(written["validation"])
    assert all(text.startswith("test") for text in written["test"])
    assert written["lm"] == [*written["train"], "unlabelled 0"]


def test_the_arms_are_the_papers_rows(grid: Any, tables: Any) -> None:
    assert list(grid.ARMS) == list(tables.TITLES) == list(tables.PAPER)
    assert {arm.lm for arm in grid.ARMS.values()} == {None, *grid.LM_ARMS}


def fake(arm: str, errors: list[float]) -> list[dict[str, Any] | None]:
    made: list[dict[str, Any] | None] = []
    for seed, error in enumerate(errors, start=1):
        common = {"task": "classify/trec6", "seed": seed, "collapsed": False}
        splits = {
            split: {**common, "split": split, "metrics": {"accuracy": 1 - error}}
            for split in ("validation", "test")
        }
        made.append({"folder": Path(arm, f"seed-{seed}"), **splits})
    return made


def test_the_table_shows_errors_beside_the_papers(tables: Any) -> None:
    found = {
        "full": fake("full", [0.10, 0.11, 0.12]),
        "freez": fake("freez", [0.05, 0.061, 0.07]),
        "last": [*fake("last", [0.2]), None],
        "chain": [None, None],
    }
    text = tables.table("trec6", found, "test")
    lines = {line.split(" | ")[0]: line for line in text.splitlines() if line[:1] == "|"}
    assert "| 3 | 11.00 ± 1.00 | 11.00 ± 1.00 | - | - | 6.86 |" in lines["| Full"]
    assert "-4.97 [" in lines["| Freez"]
    assert lines["| Last"].startswith("| Last | 1 | 20.00 | 20.00 | +9.00 | ")
    assert lines["| Chain-thaw"] == "| Chain-thaw | 0 | - | - | - | - | 6.71 |"
    assert "Freez is better than Full in accuracy by 4.97 points" in text
    assert "(not taken over)" in tables.table("other", found, "test")


QUESTIONS = {"DESC:manner": "How did", "ENTY:other": "What is", "NUM:count": "How many"}


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A small TREC, a small IMDb, and an encoder with random weights."""
    data = tmp_path / "data"
    (data / "trec").mkdir(parents=True)
    for name, count in (("train_5500", 60), ("TREC_10", 10)):
        lines = [f"{kind} {text} {n} ?\n" for n in range(count) for kind, text in QUESTIONS.items()]
        (data / "trec" / f"{name}.label").write_text("".join(lines))
    for part, count in (("train", 70), ("test", 12)):
        for kind, word in (("pos", "good"), ("neg", "bad"), ("unsup", "some")):
            folder = data / "imdb" / "aclImdb" / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}_9.txt").write_text(f"a {word} film of {number} minutes")
    words = " ".join([*QUESTIONS.values(), "good bad some a film of minutes ? 0 1 2 3 4 5 6 7 8 9"])
    pretrained(tmp_path / "encoder", train_tokenizer([words] * 3, TokenizerConfig(vocab_size=70)))
    return tmp_path


def pretrained(folder: Path, tokenizer: Tokenizer) -> None:
    from finetune.checkpoints.folder import save_checkpoint
    from finetune.training.loop.pretrainer import Pretrainer

    module = Pretrainer(Encoder(SHAPE))
    head = {"kind": "masked_lm"}
    save_checkpoint(folder, module, tokenizer, encoder_config=SHAPE, head=head)


def words_for(world: Path, *more: str) -> list[str]:
    named = [f"--{name}={world / name}" for name in ("encoder", "data", "out")]
    sizes = ["--imdb", "96,12,20,10", "--epochs", "2", "--phase-epochs", "0.25", "--seeds", "1,2"]
    rest = ["--lm-epochs", "1", "--batch-size", "16", "--accelerator", "cpu"]
    return [*named, *sizes, *rest, *more]


def test_the_grid_is_checked_before_it_begins(
    grid: Any, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grid.main(words_for(world, "--phase-epochs", "1")) == 2
    assert "need more than" in capsys.readouterr().err
    options = grid.parse(words_for(world))
    grid.Grid(options, SHAPE).check()
    options.seeds = [1, 2, 3]
    grid.Grid(options, SHAPE).check()  # seeds may be added
    options.epochs = 3
    with pytest.raises(ConfigError, match="epochs was 2 when the grid began and is 3 now"):
        grid.Grid(options, SHAPE).check()


@pytest.mark.slow
def test_the_grid_goes_on_and_makes_its_table(
    grid: Any, world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_for(world)
    assert grid.main([*words, "--seeds", "1", "--sets", "imdb", "--arms", "full,chain"]) == 0
    first = world / "out" / "imdb" / "full" / "seed-1"
    assert not (first / "checkpoints").exists()
    written = (first / "results.json").stat().st_mtime_ns
    assert grid.main(words) == 0, capsys.readouterr().err
    assert (first / "results.json").stat().st_mtime_ns == written  # it was kept
    text = (world / "out" / "table.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert text.count("| Freez + discr + stlr | 2 | ") == 2
    assert "a sample: 96 train, 12 validation, 20 test, 10 unlabelled" in text
    assert all(one.is_dir() for one in (world / "out" / "trec6" / "lm").iterdir())
    monkeypatch.setattr(grid, "fit", None)  # nothing is left to do
    assert grid.main(words) == 0
    assert grid.main([*words, "--table"]) == 0


@pytest.mark.slow
def test_the_ladder_of_transfer_and_the_grids_have_tables_and_figures(
    monkeypatch: pytest.MonkeyPatch, world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="draws (.[plots])")
    pytest.importorskip("sklearn", reason="the baselines' regression (.[baselines])")
    transfer = imported("transfer", monkeypatch)
    vectors = world / "vectors.txt"
    vectors.write_text("how 1 0 0\nmany 0 1 0\nwhat 0 0 1\n")
    out = world / "transfer"
    words = [f"--{name}={world / name}" for name in ("encoder", "data")]
    words += [
        f"--out={out}",
        f"--word-vectors={vectors}",
        "--epochs=1",
        "--seeds=1,2",
        "--max-length=32",
    ]
    assert transfer.main(["ladder", *words]) == 0, capsys.readouterr().err
    rows = (out / "ladder.md").read_text().splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in rows] == list(transfer.STEPS)
    assert [line.split(" | ")[1] for line in rows] == ["1", "1", "2", "2", "2", "2"]
    assert (out / "ladder-trec6.png").stat().st_size > 1000

    grid = out / "grid" / "trec6" / "full" / "seed-1"
    grid.mkdir(parents=True)
    for file in ("results.json", "test.json"):
        grid.joinpath(file).write_text((out / "trec6" / "fine-tuned" / "seed-1" / file).read_text())
    assert transfer.main(["grids", f"--grids=mine={out / 'grid'}", f"--out={out}"]) == 0
    assert "| trec6, mine | Full | 1 | " in (out / "grids.md").read_text()
    assert (out / "grids-trec6.png").is_file()
    assert transfer.main(["grids", f"--grids=none={world}", f"--out={out}"]) == 2
    assert "expected grids with runs that have ended" in capsys.readouterr().err
