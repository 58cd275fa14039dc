"""The command `finetune submit`: runs of GLUE tasks -> the zip that the leaderboard takes.

Answers that a run has on file are taken where its best checkpoint gave them to these very
examples; the others are predicted now. The form of the files is `tasks/leaderboard.py`'s.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from finetune.console.output import are, counted, put
from finetune.errors import ConfigError, DataError
from finetune.metrics.semantics import meaning, shown
from tasks import leaderboard
from tasks.leaderboard import FORMS, Form

if TYPE_CHECKING:
    from finetune.comparison import Run
    from finetune.runs.folder import RunFolder
    from finetune.runs.results import BestSeed
    from finetune.task.interface import Answer
    from tasks.glue.task import GlueTask

Predict = Callable[[Path, str | None, str, str | None], "list[Answer]"]
"""(run folder of one seed, another task than its own or None, split, another data folder than its
own or None) -> answers in the order of the examples, those on file where they are still right."""

USER_ERROR = 2
LEARNT_BY = {"ax": "mnli"}
"""A task that nothing is trained on -> the one whose run answers it."""
REFUSED = "the leaderboard rejects it"


@dataclass(frozen=True)
class Entry:
    """The run that answers a GLUE task."""

    task: str
    """`rte`."""
    run: Run
    """Of one seed; its metrics are of the validation files."""
    settings: Mapping[str, Any]
    """Its config.yaml."""
    choice: str = ""
    """Why it was taken, where it is one of several seeds."""

    @property
    def folder(self) -> RunFolder:
        """Where its answers and its best checkpoint are."""
        from finetune.runs.folder import RunFolder

        return RunFolder(self.run.folder or Path())


@dataclass(frozen=True)
class Source:
    """Where the answers of one file come from."""

    form: Form
    entry: Entry
    task: GlueTask
    absent: str
    """Why there are none: its test file is not to be found. Empty where it is."""


def submit(words: list[str], predict: Predict | None = None) -> int:
    """Build or check a submission; see `finetune submit --help`.

    Args:
        words: The words after `finetune submit`.
        predict: Answers a split by a run's best checkpoint; left out, the library does.

    Returns:
        The exit status: 0, or 2 where the zip is not fit and has not been written.

    Raises:
        ConfigError: The words do not fit, or the runs are not one a GLUE task.
        DataError: A run has not ended, or a file is not in its official form.
    """
    options = _parser().parse_args(words)
    if options.check is not None:
        return _check(options)
    if not options.run or options.out is None:
        raise ConfigError("submit: expected RUN... and --out ZIP, or --check ZIP")
    return _build(options, predict or _predict)


def _predict(folder: Path, task: str | None, split: str, data: str | None) -> list[Answer]:
    from finetune.jobs.evaluation import answer_split
    from finetune.runs.folder import RunFolder

    # Of several seeds a single one's folder comes here, unless all answer together.
    return answer_split(folder, split, task, data, ensemble=len(RunFolder(folder).seeds) > 1)


def _parser() -> ArgumentParser:
    from finetune.cli import add_ensemble, add_json, command_parser

    parser = command_parser(
        "submit", "Pack the answers of GLUE runs into the zip that the leaderboard accepts."
    )
    parser.add_argument("run", type=Path, nargs="*", help="folder of a run, one for each task")
    parser.add_argument("--out", type=Path, help="zip file to write; an existing file is replaced")
    parser.add_argument(
        "--check", type=Path, metavar="ZIP", help="only check this zip, whoever made it"
    )
    parser.add_argument(
        "--data", help="folder with glue_data/ (default: the data folder of each run)"
    )
    parser.add_argument(
        "--allow-subset",
        action="store_true",
        help="accept test files with fewer rows than the official ones",
    )
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help=f"write the zip even if tasks are missing, though {REFUSED}",
    )
    add_ensemble(parser, "submit")
    add_json(parser, "print what was packed, or the problems found by --check, as JSON on stdout")
    return parser


def _check(options: Namespace) -> int:
    if options.run or options.out is not None or options.ensemble:
        raise ConfigError(
            "submit: --check ZIP reads a zip and writes nothing; remove RUN, --out and --ensemble"
        )
    problems = leaderboard.zip_problems(
        options.check, allow_subset=options.allow_subset, allow_missing=options.allow_missing
    )
    complete = not problems and not leaderboard.zip_problems(options.check)  # nothing allowed
    if options.json:
        summary = {"zip": str(options.check), "complete": complete, "problems": problems}
        put(json.dumps(summary, ensure_ascii=False))
    if problems:
        return _refuse(problems)
    _say(f"{options.check}: no problem found")
    if not complete:
        _say(f"warning: official files or rows are missing; {REFUSED}")
    return 0


def _refuse(problems: Sequence[str]) -> int:
    """Say each problem in a line of its own."""
    for problem in problems:
        _say(f"finetune: {problem}")
    return USER_ERROR


def _say(message: str) -> None:
    from finetune.runs.folder import say

    say(message)


def _build(options: Namespace, predict: Predict) -> int:
    _check_out(options.out)
    entries = read_entries(options.run, ensemble=options.ensemble)
    for entry in entries.values():
        _say(_about(entry))
    sources = list(_sources(entries, options.data))
    lacking = [f"{source.form.name}: {source.absent}" for source in sources if source.absent]
    lacking += leaderboard.missing_problems(source.form.name for source in sources)
    # Said before anything is predicted, which may take hours.
    if lacking and not options.allow_missing:
        return _refuse(
            [*lacking, f"submit: {_count(lacking)} missing; --allow-missing goes without"]
        )
    sources = [source for source in sources if not source.absent]
    if not sources:
        raise ConfigError(f"submit: no file of the {len(FORMS)} is left to write")
    files, problems = _files(sources, options, predict)
    if problems:
        return _refuse([*problems, f"submit: {options.out} was not written"])
    leaderboard.write_zip(options.out, files)
    _tell(options.out, files, lacking, entries)
    put(json.dumps(_facts(options.out, files, entries)) if options.json else str(options.out))
    return 0


def _check_out(out: Path) -> None:
    from finetune.runs.opening import check_writable

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file such as {out / 'glue.zip'}")
    check_writable(out.parent)


def _count(lacking: Sequence[str]) -> str:
    return f"{len(lacking)} of the {len(FORMS)} files {are(len(lacking))}"


def _tell(
    out: Path, files: Mapping[str, str], lacking: Sequence[str], entries: Mapping[str, Entry]
) -> None:
    """Say what was written, whether the leaderboard takes it, and what was scored."""
    for name, content in files.items():
        rows = content.count("\n") - 1
        of = "" if rows == FORMS[name].rows else f" of {FORMS[name].rows:,}: a subset; {REFUSED}"
        _say(f"{name}: {counted(rows, 'answer')}{of}")
    for problem in lacking:
        _say(f"missing: {problem}")
    if lacking:
        _say(f"{out}: {_count(lacking)} missing; {REFUSED}")
    _say(average_line(_scores(entries)))


def _facts(out: Path, files: Mapping[str, str], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """What was packed, as plain values; scores are fractions."""
    scores = _scores(entries)
    return {
        "zip": str(out),
        "files": {name: content.count("\n") - 1 for name, content in files.items()},
        "missing": [name for name in FORMS if name not in files],
        "runs": {task: str(entry.run.folder) for task, entry in entries.items()},
        "metrics": {task: dict(metrics) for task, metrics in scores.items()},
        "average": leaderboard.glue_average(scores),
    }


def _scores(entries: Mapping[str, Entry]) -> dict[str, Mapping[str, float]]:
    """Task -> its metrics on the validation files."""
    return {task: entry.run.metrics for task, entry in entries.items()}


def average_line(scores: Mapping[str, Mapping[str, float]]) -> str:
    """The GLUE average of validation scores in words, or what it lacks."""
    average = leaderboard.glue_average(scores)
    if average is None:
        lacking = ", ".join(leaderboard.missing_metrics(scores))
        return f"no GLUE average on the validation files: {lacking} missing"
    return f"GLUE average on the validation files: {100 * average:.2f} %"


def read_entries(folders: Sequence[Path], *, ensemble: bool = False) -> dict[str, Entry]:
    """Read what runs say of themselves, in the order that they are named.

    Args:
        folders: RUN folders; of several seeds, the one that is best on validation is taken.
        ensemble: Take all seeds of these together; runs of one seed answer on their own.

    Returns:
        Task (`rte`) -> its run.

    Raises:
        ConfigError: A folder holds no run of a GLUE task, or two hold the same task.
        DataError: A run has not ended.
    """
    entries: dict[str, Entry] = {}
    folder_of: dict[str, Path] = {}
    for folder in folders:
        entry = _read_entry(folder, ensemble=ensemble)
        if entry.task in entries:
            raise ConfigError(
                f"submit: expected one run of glue/{entry.task}, got {folder_of[entry.task]} and "
                f"{folder}; leave one out"
            )
        entries[entry.task], folder_of[entry.task] = entry, folder
    return entries


def _read_entry(folder: Path, *, ensemble: bool) -> Entry:
    from finetune.jobs.ensembles import member_folders
    from finetune.runs.folder import RunFolder
    from tasks.glue.task import glue_task

    run_folder = RunFolder(folder)
    settings = run_folder.read_config()
    if "task" not in settings:
        name = run_folder.config_file.name
        raise ConfigError(f"{folder}: expected a fine-tuning run with {name}, got none")
    family, _, name = str(settings["task"]).partition("/")
    if family != "glue":
        raise ConfigError(f"{folder}: expected a run of a GLUE task, got {settings['task']}")
    task, runs = glue_task(name).row.name, run_folder.read_ended()
    if runs[0].folder == folder:
        return Entry(task, runs[0], settings, "one seed, which answers alone" if ensemble else "")
    best = run_folder.best_seed()
    if not ensemble or len(runs) < 2 or "fixed_answer" in best.run.results:
        return Entry(task, best.run, settings, _choice(best, runs))
    member_folders(run_folder)  # refuses seeds that have not ended, before anything is predicted
    seeds = ", ".join(str(run.seed) for run in runs)
    means = {name: fmean(run.metrics[name] for run in runs) for name in best.run.metrics}
    whole = replace(best.run, folder=folder, metrics=means)
    return Entry(task, whole, settings, f"seeds {seeds} together (scores: the mean of the seeds)")


def _choice(best: BestSeed, runs: Sequence[Run]) -> str:
    seeds = ", ".join(str(run.seed) for run in runs)
    unit = " %" if meaning(best.metric).percent else ""
    score = f"best {best.metric} on {best.run.results['split']}, {shown(best.metric, best.value)}"
    return f"seed {best.run.seed} of {seeds} ({score}{unit})"


def _about(entry: Entry) -> str:
    parts = [f"glue/{entry.task}: {entry.run.folder}"]
    if entry.choice:
        parts.append(entry.choice)
    if "fixed_answer" in entry.run.results:
        parts.append(
            f"not trained: every example is answered '{entry.run.results['fixed_answer']}', the "
            "majority class of the training labels"
        )
    return ", ".join(parts)


def _sources(entries: Mapping[str, Entry], data: str | None) -> Iterator[Source]:
    """The files that there is a run for; a diagnostic set is answered by the run it diagnoses."""
    for form in FORMS.values():
        entry = entries.get(form.task) or entries.get(LEARNT_BY.get(form.task, ""))
        if entry is not None:
            task = _task(entry, form, data)
            yield Source(form, entry, task, _absence(task, form.split))


def _task(entry: Entry, form: Form, data: str | None) -> GlueTask:
    from tasks.glue.task import glue_task

    folder = data or entry.settings.get("data")
    own = entry.settings.get("test") if form.split == "test" else None
    files = {"test": Path(own)} if own else {}
    return glue_task(form.task, Path(folder) if folder else None, files)


def _absence(task: GlueTask, split: str) -> str:
    try:
        task.data_files(split)
    except DataError as error:
        return str(error)
    return ""


def _files(
    sources: Sequence[Source], options: Namespace, predict: Predict
) -> tuple[dict[str, str], list[str]]:
    """Name -> content of each file, and the problems of all of them."""
    files: dict[str, str] = {}
    problems: list[str] = []
    for source in sources:
        answers = _answers(source, options.data, predict)
        try:
            files |= source.task.submission(source.form.split, answers)
        except DataError as error:  # a label of another task
            problems.append(f"{source.entry.folder.predictions(source.form.split)}: {error}")
    for name, content in files.items():
        problems += leaderboard.file_problems(
            name, content.encode(), allow_subset=options.allow_subset
        )
    return files, problems


def _answers(source: Source, data: str | None, predict: Predict) -> list[Answer]:
    """The answers of the run, in the order of the test file."""
    split = source.form.split
    ids = [example.id for example in source.task.examples(split)]
    other = None if source.form.task == source.entry.task else source.task.name
    answers = predict(source.entry.folder.path, other, split, data)
    if [answer["id"] for answer in answers] != ids:
        raise DataError(
            f"{source.entry.folder.path}: expected answers to the {len(ids):,} examples of "
            f"{source.task.data_files(split)[0]}, got {len(answers):,} with other ids; "
            "name the run's data folder by --data"
        )
    return answers
