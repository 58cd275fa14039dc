"""The benchmarks that need no data run to their end at the smallest sizes.

The others are run by `test_benchmarks_finetuning.py` and `test_benchmarks_unfreezing.py`.
"""

from __future__ import annotations

import importlib
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from finetune.jobs.sources import load_model
from tasks.__main__ import main as run_command
from tests.made.families import write_families
from tests.made.texts import WORDS, sentences
from tests.made.world import World

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALLEST = {
    "spans": (
        ["--questions", "4", "--length", "32", "--batch-size", "2", "--repeats", "1"],
        r"5 windows of 32 tokens",
    ),
}


@pytest.fixture
def _torch_as_it_was() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("_torch_as_it_was")
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs_to_its_end(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    words, pattern = SMALLEST[name]
    importlib.import_module(name).main(words)
    assert re.search(pattern, capsys.readouterr().out)


@pytest.mark.slow
def test_each_kind_of_positions_reads_longer_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    importlib.import_module("lengths").main(["--out", str(tmp_path), "--steps", "1"])
    lines = capsys.readouterr().out.splitlines()[-7:]
    assert [line.split()[0].strip(",") for line in lines] == [
        *("learned", "sinusoidal", "rotary", "alibi", "relative", "none", "relative"),
    ]
    assert all(float(line.split()[-1]) > 0 for line in lines)


@pytest.mark.usefixtures("_torch_as_it_was")
def test_each_kind_of_layer_has_its_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    layers = importlib.import_module("layers")
    milliseconds, gib = layers.in_own_process(
        layers.measure, "LSTM, both directions", 16, 64, 16, 0.01
    )
    assert milliseconds > 0 <= gib
    monkeypatch.setattr(layers, "in_own_process", lambda _, kind, *__: (float(len(kind)), 0.5))
    layers.main(["--size", "16", "--tokens", "64", "--lengths", "8", "16"])
    assert re.search(r"attention +9 +9 +1.00\n", capsys.readouterr().out)
    assert layers.slope([9.0, 1.0, 2.0], [1, 8, 16]) == "2.00"


@pytest.mark.parametrize("length", [40, 7])
def test_a_layer_with_a_window_sees_the_window_alone(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    layers = importlib.import_module("layers")
    hidden = torch.randn(2, length, 16, requires_grad=True)
    for kind in layers.KINDS[:2]:
        first = layers.layer(kind, 16)(hidden)[:, 0]  # normalized: its plain sum is a constant
        (gradient,) = torch.autograd.grad((first * torch.arange(16)).sum(), hidden)
        seen = gradient.abs().sum(dim=(0, 2)) > 0
        assert seen[:33].all()
        assert seen[33:].all() == (kind == layers.ATTENTION or length < 33)


@pytest.mark.usefixtures("_torch_as_it_was")
def test_each_saving_of_memory_has_its_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    memory = importlib.import_module("memory")
    assert memory.measure("all three", 16, 1, 64, 16) >= 0
    monkeypatch.setattr(memory, "in_own_process", lambda _, name, *__: float(len(name)))
    memory.main(["--lengths", "8", "16"])
    assert re.search(r"float32 +7.00 +7.00\n", capsys.readouterr().out)
    monkeypatch.setattr(
        memory, "apart", lambda given: {"gib": float(len(given["contestant"])), "seconds": 1.0}
    )
    memory.main(["trainer", "--rows", "2"])
    assert "ours / hf-best: 0.57 of the memory" in capsys.readouterr().out


@pytest.mark.usefixtures("_torch_as_it_was")
def test_ways_to_read_long_texts_are_beside_one_another(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    rng = random.Random(1)
    for split in ("train", "validation", "test"):
        words = [rng.choices(WORDS, k=rng.choice((4, 140))) for _ in range(12)]
        rows = [
            # A sign at which str.splitlines would end the row.
            {"id": number, "text": "\u2028".join(one), "label": ("neg", "pos")[number % 2]}
            for number, one in enumerate(words)
        ]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    given = ["imdb", "--encoder", world.pretrained, "--files", tmp_path, "--out", tmp_path / "runs"]
    given += ["--max-length", 16, "--stride", 2, "--examples", 4, "--scored", 8, "--epochs", 1]
    benchmark = importlib.import_module("long_texts")
    for arms in ("cut", "cut,windows"):
        benchmark.main([*map(str, given), "--arms", arms, "--seeds", "1,2"])
    out = capsys.readouterr().out
    assert len(re.findall(r"^cut +\d+\.\d ± ", out, re.MULTILINE)) == 2
    assert len(re.findall(r"^windows +\d+\.\d ± ", out, re.MULTILINE)) == 1
    counts = [int(count) for count in re.findall(r"(?:to|above) \d+ \((\d+)\)", out)[-4:]]
    assert sum(counts) == 8 > counts[0] > 0  # texts of 4 and of 140 words
    scored = (tmp_path / "runs" / "test.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert len({json.loads(line)["id"] for line in scored}) == 8


@pytest.mark.usefixtures("_torch_as_it_was")
def test_passages_of_race_are_read_in_these_ways_too(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    data, out = write_families(tmp_path).data, tmp_path / "runs"
    given = ["race", "--encoder", world.pretrained, "--data", data, "--out", out]
    given += ["--pooling", "align", "--max-length", 24, "--stride", 2, "--examples", 4]
    given += ["--epochs", 1, "--arms", "cut,head-tail", "--seeds", "1,2"]
    importlib.import_module("long_texts").main([*map(str, given)])
    table = capsys.readouterr().out
    assert re.findall(r"^(cut|head-tail) +\d+\.\d ± ", table, re.MULTILINE) == ["cut", "head-tail"]
    assert "to 128 (6)" in table  # two questions of each of three passages
    for arm in ("cut", "head-tail"):
        settings = (out / arm / "config.yaml").read_text(encoding="utf-8")
        assert f"long: {arm}\n" in settings
        assert "pooling: align\n" in settings
        assert "train_examples: 4\n" in settings


def test_sentences_say_who_belongs_to_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    heads = importlib.import_module("syntax_heads")
    goals = {
        "determiner → noun": heads.NOUNS,
        "subject → verb": heads.VERBS,
        "object → verb": heads.VERBS,
        "himself, herself → person": heads.MEN + heads.WOMEN,
        "noun → the same noun": heads.NOUNS,
    }
    rng, seen = random.Random(1), set()
    for template in heads.TEMPLATES * 20:
        words, relations = template(rng)
        for name, word, goal in relations:
            seen.add(name)
            assert words[goal] in goals[name]
            assert (words[word] == words[goal]) == (name == "noun → the same noun")
            if words[word] in ("himself", "herself"):
                assert (words[goal] in heads.MEN) == (words[word] == "himself")
    assert seen == set(goals)


def test_a_head_is_chosen_on_other_words_than_it_is_scored_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    heads = importlib.import_module("syntax_heads")
    even, odd = [True, False, False], [False, True, True]  # heads 2 and 3 are right of the odd
    looks = heads.Looks(torch.tensor([even, odd] * 4), [1, 2] * 4)
    assert heads.best(looks) == (0, 0.0, 4)
    assert heads.best_distance(looks) == 0.0


def test_heads_of_a_net_are_asked_about_syntax(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    heads = importlib.import_module("syntax_heads")
    model = load_model(world.pretrained)
    pieces = {word: len(model.tokenizer.encode_ids([word])[0]) for word in WORDS}
    words = [word for word in WORDS if pieces[word] == 1][:5]
    sentence = heads.Sentence(words, [("determiner → noun", 0, 1), ("determiner → noun", 3, 4)])
    odd = heads.Sentence([max(WORDS, key=pieces.__getitem__)], [("determiner → noun", 0, 0)])
    (looks,) = heads.look(model, [sentence, odd]).values()
    assert looks.right.shape[0] == 2
    assert looks.distances == [1, 1]


def test_arms_stand_beside_what_they_are_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    made_world = importlib.import_module("made_world")
    results = {
        arm: [{"loss": 1 + number % 2 + seed / 10} for seed in range(3)]
        for number, arm in enumerate(made_world.QUESTIONS["residual"])
    }
    lines = made_world.tables("residual", results).splitlines()
    assert lines[2].split()[-3:] == ["1.100", "±", "0.100"]
    assert lines[5].endswith("2.100 ± 0.100 (+1.000 [+1.000, +1.000])")


@pytest.mark.slow
def test_questions_are_answered_in_the_made_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    main = importlib.import_module("made_world").main
    for question in ("objectives", "residual"):
        main([question, "--out", str(tmp_path), "--steps", "2", "--seeds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(" ± " in line for line in lines) == 4 + 8


def test_the_page_on_scaling_has_the_tables_of_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    importlib.import_module("scaling").main([])
    page = (BENCHMARKS.parent / "docs" / "scaling.md").read_text()
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 2
    assert all(table in page for table in tables)


def test_the_model_of_scaling_has_the_right_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    scaling = importlib.import_module("scaling")
    machine = scaling.Machine(latency=0.0, jitter=0.0)
    training = scaling.base(None, 1)
    alone = scaling.step_seconds(training, 1, machine)
    assert alone["step"] == alone["compute"] > alone["all_reduce"] == 0
    # A ring moves twice the bytes but for one part; what stays in the node is all there is.
    size, eight = 1e9, scaling.all_reduce_seconds(1e9, 8, machine)
    assert eight == pytest.approx(2 * 7 / 8 * size / machine.inside)
    many = scaling.all_reduce_seconds(size, 8 * 1000, machine)
    assert many == pytest.approx(eight + 2 * size / 8 / machine.outside, rel=0.01)
    # However long the backward pass: the tied embeddings' gradient is sent after it.
    long = scaling.step_seconds(scaling.base(2**20, 8), 8, machine)
    last = scaling.all_reduce_seconds(training.last_bytes, 8, machine)
    assert long["step"] == pytest.approx(long["compute"] + last)


@pytest.mark.slow  # processes that train
def test_the_model_of_scaling_is_checked_in_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    sizes = ["--steps", "5", "--rows", "2", "--length", "16"]
    importlib.import_module("scaling").main(["--measure", "1", "2", *sizes])
    header, one, two = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "processes"
    assert [float(line.split()[0]) for line in (one, two)] == [1, 2]
    assert all(float(number.replace(",", "")) > 0 for number in two.split())


def test_a_causal_run_stands_beside_counting(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    out, test = tmp_path / "run", tmp_path / "test.txt"
    assert run_command(world.pretrain(out, "--tokenizer", world.tokenizer, "--causal")) == 0
    test.write_text("\n\n".join(sentences(9, 40)), encoding="utf-8")
    words = ["--train", str(world.corpus), "--test", str(test), "--out", str(tmp_path / "out.json")]
    importlib.import_module("language_model").main([str(out), *words])
    assert re.search(r"(?m)^net, stride 7 +\d", capsys.readouterr().out)
    figures = json.loads((tmp_path / "out.json").read_text())
    nats = {name: row["nats_per_token"] for name, row in figures["metrics"].items()}
    assert nats["4-gram"] < nats["bigram"] < nats["unigram"] < math.log(60)
    steps = [(row["from"], row["to"]) for row in figures["by_position"]]
    assert steps == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]


@pytest.mark.usefixtures("_torch_as_it_was")
def test_the_cache_is_filled_and_opened_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    words = ["--data", world.data, "--encoder", world.pretrained, "--task", "sst2", "--rows", 8]
    caching = importlib.import_module("caching")
    caching.main([str(word) for word in [*words, "--rounds", 1, "--threads", 1]])
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert names == ["plain forward", "fill", "open"]
