"""The library's own commands: each imports what it needs when it is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.cli.parser import Command, add_json, command_parser, positive, read_settings
from finetune.console.output import put
from finetune.errors import ConfigError
from finetune.machine.processes import is_first_process
from finetune.runs.families import Family

if TYPE_CHECKING:
    from finetune.comparison import Run
    from finetune.runs.results import Results


def own_commands(families: Mapping[str, Family]) -> dict[str, Command]:
    """The table of commands: the library's, and one for each family of tasks."""
    own = {
        "tokenizer": Command("build", "train a tokenizer on a corpus", _tokenizer),
        "pretrain": Command("build", "pretrain an encoder on raw text", _pretrain),
        "adapt": Command("build", "continue pretraining on the texts of a task", _adapt(families)),
    }
    for word, family in families.items():
        own[word] = Command(family.group, family.help, _fine_tune(word, family, families))
    own["import-hf"] = Command(
        "build", "convert a Hugging Face encoder into our format", _import_hf
    )
    own["evaluate"] = Command("use", "score a finished run on a split or file", _evaluate(families))
    own["predict"] = Command("use", "predict labels or answers for new texts", _predict(families))
    own["export"] = Command(
        "use", "export a run's best checkpoint to Hugging Face or ONNX", _export(families)
    )
    own["runs"] = Command("look", "list the runs in a folder, with scores and states", _runs)
    own["compare"] = Command(
        "look", "compare two runs: confidence intervals and significance tests", _compare(families)
    )
    help_ = "inspect attention, layers and embeddings of a run"
    own["inspect"] = Command("look", help_, _inspect(families), _inspect_kinds)
    own["report"] = Command("look", "write a report of runs as one HTML file", _report(families))
    own["dashboard"] = Command(
        "look", "create a workspace and report in Weights & Biases", _dashboard
    )
    own["describe"] = Command(
        "measure", "count parameters and FLOPs of a config or checkpoint", _describe(families)
    )
    own["cache"] = Command("measure", "list or clear the cached hidden states", _cache)
    own["bench"] = Command(
        "measure", "measure the speed of encoders on this machine", _bench(families)
    )
    return own


def _tokenizer(words: list[str]) -> int:
    from finetune import jobs as runs
    from finetune.runs.settings import TokenizerRun

    run = read_settings(TokenizerRun, "tokenizer", words)
    if run is not None:
        tokenizer = runs.make_tokenizer(run)
        if "--json" in words:
            print(json.dumps({"tokenizer": run.out, "vocab_size": tokenizer.vocab_size}))
    return 0


def _pretrain(words: list[str]) -> int:
    from finetune import jobs as runs
    from finetune.runs.settings import PretrainRun

    run = read_settings(PretrainRun, "pretrain", words)
    if run is not None:
        results = runs.pretrain(run)
        _show(results, Path(run.out), words, trained=not run.find_lr)
    return 0


def _adapt(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune import jobs as runs
        from finetune.runs.settings import AdaptRun

        run = read_settings(AdaptRun, "adapt", words)
        if run is not None:
            results = runs.adapt(run, families)
            _show(results, Path(run.out), words, trained=not run.find_lr)
        return 0

    return command


def _fine_tune(
    word: str, family: Family, families: Mapping[str, Family]
) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune import jobs as runs

        run = read_settings(
            family.settings(),
            word,
            words,
            fixed={"task": f"{word}/{family.only}"} if family.only else None,
            names=family.names(),
            about=family.about(),
        )
        if run is not None:
            results = runs.fit(run, families)
            trained = not (run.dry_run or run.find_lr)
            _show(results, Path(runs.folder_of(run)), words, trained=trained)
        return 0

    return command


def _import_hf(words: list[str]) -> int:
    from finetune.cli import import_hf

    return import_hf.command(words)


def _evaluate(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        parser = command_parser("evaluate", "Score the best checkpoint of a finished run.")
        parser.add_argument("run", type=Path, help="folder of a fine-tuning run")
        parser.add_argument(
            "--split", help="split with labels (split (default: the validation split))"
        )
        parser.add_argument(
            "--file", help="another file with labels, scored as the split --split (default: test)"
        )
        add_json(parser)
        space = parser.parse_args(words)
        from finetune.jobs import evaluation as scoring

        _show(scoring.evaluate(space.run, families, space.split, space.file), space.run, words)
        return 0

    return command


def _predict(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.text.features.rows import READERS

        parser = command_parser(
            "predict", "Predict labels or answers for new texts with the best checkpoint of a run."
        )
        parser.add_argument(
            "run", type=Path, help="folder of a fine-tuning run; a pretraining run fills in [MASK]"
        )
        parser.add_argument("--input", default="-", help="file with texts; - = standard input")
        parser.add_argument("--output", default="-", help="JSONL file; - = standard output")
        parser.add_argument(
            "--format",
            choices=READERS,
            help="format of the input (default: by file extension or first line)",
        )
        parser.add_argument(
            "--batch-size", type=positive, help="texts in a batch (default: the run's batch_size)"
        )
        parser.add_argument(
            "--top-k", type=positive, help="candidates for each [MASK] (default: 5)"
        )
        add_json(parser, "print the number of answers written to --output, as JSON on stdout")
        space = parser.parse_args(words)
        if space.json and space.output == "-":
            raise ConfigError(
                "--json goes with --output FILE: answers on standard output are JSON already"
            )
        from finetune.jobs.prediction import predict_file

        count = predict_file(
            space.run,
            space.input,
            space.output,
            families,
            kind=space.format,
            batch_size=space.batch_size,
            top=space.top_k,
        )
        if space.json:
            print(json.dumps({"answers": count, "output": space.output}))
        return 0

    return command


def _export(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.cli import export

        return export.command(families)(words)

    return command


def _compare(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        parser = command_parser("compare", "Compare two runs, or two groups of runs: A minus B.")
        parser.add_argument("a", type=Path, help="folder of a run, or of the runs of one group")
        parser.add_argument("b", type=Path, help="another")
        parser.add_argument("--metric", help="metric to compare (default: all that both have)")
        add_json(parser, "print all numbers as JSON on stdout")
        space = parser.parse_args(words)
        from finetune.comparison import as_json, as_text, compare
        from finetune.runs.folder import note
        from finetune.runs.groups import read_group

        note("comparing: the bootstrap over examples may take a minute")
        a, b = read_group(space.a), read_group(space.b)
        score = _score_of((*a.runs, *b.runs), families)
        _warn_of_other_answers((*a.runs, *b.runs))
        found = compare(a, b, space.metric, score=score)
        put(json.dumps(as_json(found)) if space.json else as_text(found))
        return 0

    return command


def _runs(words: list[str]) -> int:
    from finetune.cli import runs

    return runs.command(words)


def _inspect_kinds() -> list[str]:
    from finetune.cli.inspect import KINDS

    return list(KINDS)


def _inspect(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.cli import inspect

        return inspect.inspect_command(families)(words)

    return command


def _report(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.cli.report import report_command

        return report_command(families)(words)

    return command


def _dashboard(words: list[str]) -> int:
    from finetune.cli import dashboard

    return dashboard.command(words)


def _score_of(runs: Iterable[Run], families: Mapping[str, Family]) -> Callable[..., Any] | None:
    """How the task of these runs scores answers; None where none of them has its settings."""
    from finetune.runs.families import make_task, read_fit
    from finetune.runs.folder import RunFolder

    for run in runs:
        if run.folder is not None and RunFolder(run.folder).config_file.is_file():
            return make_task(read_fit(run.folder, families), families).score
    return None


def _warn_of_other_answers(runs: Iterable[Run]) -> None:
    """Name the predictions files that a run's results were not computed from."""
    from finetune.runs.folder import RunFolder, say

    for place in (RunFolder(run.folder) for run in runs if run.folder is not None):
        results = place.read_results() if place.results_file.is_file() else {}
        for split in place.foreign_splits(results):
            say(
                f"warning: {place.path}/{place.foreign(split)}; finetune evaluate {place.path} "
                "rewrites them"
            )


def _show(results: Results, folder: Path, words: list[str], *, trained: bool = True) -> None:
    """A table on stderr for people, the metrics as one JSON line on stdout for programs.

    With --json the line has all results. So it has where nothing was trained: there is no table.
    """
    if not is_first_process():
        return
    if not trained:
        print(json.dumps(results))
        return
    from finetune.cli.results_table import results_table
    from finetune.runs.folder import say

    say(results_table(results))
    say(f"run folder: {folder}")
    keys = list(results) if "--json" in words else ("task", "split", "metrics")
    print(json.dumps({key: results[key] for key in keys}))


def _describe(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.cli import measure

        return measure.describe(words, families)

    return command


def _cache(words: list[str]) -> int:
    from finetune.cli import measure

    return measure.cache(words)


def _bench(families: Mapping[str, Family]) -> Callable[[list[str]], int]:
    def command(words: list[str]) -> int:
        from finetune.cli import measure

        return measure.bench(words, families)

    return command
