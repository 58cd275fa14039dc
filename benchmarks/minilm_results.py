"""Fine-tune a published encoder on all tasks: recipes, seeds, and a recipe chosen on training data.

A recipe is `plain` (the settings that Trainer has by default: rate 5e-5, no warm-up, the first
token's pooler), `config` (configs/minilm/TASK.yaml), or such a file with flags of its own:
`config:--learning-rate=1e-4,--pooling=cls`.

--choose looks for a recipe on training data alone: a seeded fifth of it is held out (SQuAD: of its
articles, RACE: of its passages), and candidates are trained on the rest: rates, then the other
pooling with the best of them, then, with --extras, what else may help on top of the best so far.
The development set is not looked at; the flags that won and all scores are written to
OUT/TASK/choice.json, and `chosen` is a recipe from then on.

A run is a folder OUT/TASK/RECIPE/seed-N, made by the command `finetune` in a process of its own;
what has ended is kept, what was interrupted is resumed, and tasks, recipes and seeds may be added.

    python benchmarks/minilm_results.py --encoder MODEL --data data --out runs/minilm \
        --tasks rte,mrpc,cola,stsb --recipes plain,chosen --choose --seeds 1,2,3
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minilm_table import table
from option_values import limit, names, numbers
from part_files import (
    fifth,
    glue_file,
    hold_out_glue,
    hold_out_squad,
    race_passages,
    sample_glue,
    some_questions,
    write_passages,
)

from finetune.runs.folder import RunFolder
from tasks.glue.table import GLUE as GLUE_TABLE

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs" / "minilm"
GLUE = ("rte", "mrpc", "cola", "stsb", "qnli", "sst2")
TASKS = (*GLUE, "squad", "race")
MONITORS = {name: GLUE_TABLE[name].metrics[0] for name in GLUE} | {
    "squad": "f1",
    "race": "accuracy",
}
"""Task -> what candidates are judged by."""
SQUAD_PART = "train-v1.1.part44.json"
PLAIN = ("--learning-rate=5e-5", "--warmup-ratio=0", "--weight-decay=0", "--adam-epsilon=1e-8")
POOLED = ("--pooling=cls",)
RATES = ("5e-5", "1e-4", "2e-4")
EXTRAS = (
    ("--rate-decay=1.2",),
    ("--unfreeze=lp-ft", "--head-epochs=1", "--max-epochs=4", "--group-rates", "head=1e-3"),
)
"""What is tried on top of the best rate and pooling."""
Flags = tuple[str, ...]


@dataclass(frozen=True)
class Files:
    """What a task is trained and scored on, where not on the official files."""

    train: Path | None = None
    validation: Path | None = None

    def words(self) -> list[str]:
        """As options."""
        named = {"--train": self.train, "--validation": self.validation}
        return [word for name, path in named.items() if path for word in (name, str(path))]


class Driver:
    """Makes the runs of all tasks below a folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Keep the options."""
        self.options = options

    def folder(self, task: str, *parts: str) -> Path:
        """A folder of a task."""
        return Path(self.options.out, task, *parts)

    def official(self, task: str) -> Files:
        """What is trained on in the end; parts where the data is a part."""
        options = self.options
        if task == "squad":
            squad = Path(options.data) / "squad"
            part = squad / SQUAD_PART
            whole = not part.is_file() or (squad / "train-v1.1.json").is_file()
            return Files() if whole else Files(part, squad / "dev-v1.1.json")
        if task == "race" and options.race_questions:
            folder = self.folder(task, f"train-{options.race_questions}")
            if not folder.is_dir():
                passages = race_passages(self._race(), "middle")
                write_passages(
                    folder, "middle", some_questions(passages, options.race_questions, 0)
                )
            return Files(folder)
        if task in options.limit:
            folder, data = self.folder(task, f"train-{options.limit[task]}"), Path(options.data)
            file = glue_file(folder, task, "train")
            if not file.is_file():
                sample_glue(data, task, options.limit[task], folder)
            return Files(file)
        return Files()

    def _race(self) -> Path:
        race = Path(self.options.data) / "race"
        archive = race / "RACE.tar.gz"
        return archive if archive.is_file() else race / "RACE"

    def held_out(self, task: str) -> Files:
        """Four fifths of the training data, and the fifth that candidates are judged on."""
        folder, options = self.folder(task, "held-out"), self.options
        if task in GLUE:
            data = Path(options.data)
            return Files(*hold_out_glue(data, task, folder, options.choose_rows))
        if task == "squad":
            train = self.official(task).train or Path(options.data) / "squad" / "train-v1.1.json"
            return Files(*hold_out_squad(train, folder))
        count = options.choose_rows or options.race_questions
        passages = some_questions(race_passages(self._race(), "middle"), count, 0)
        parts = zip(("train", "held-out"), fifth(passages, 0), strict=True)
        return Files(*(write_passages(folder / name, "middle", part) for name, part in parts))

    def words(self, task: str, flags: Flags, files: Files, folder: Path, seed: int) -> list[str]:
        """The command of a run."""
        family, name = {"squad": ("squad", "1.1"), "race": ("race", "middle")}.get(
            task, ("glue", task)
        )
        options = self.options
        words = [family, name, "--config", str(CONFIGS / f"{task}.yaml")]
        words += ["--encoder", str(options.encoder), "--data", str(options.data)]
        words += ["--out", str(folder), "--seed", str(seed), "--no-wandb", "--no-progress"]
        words += ["--cache-dir", str(Path(options.out) / "cache"), *files.words(), *flags]
        return [*words, "--resume"] if RunFolder(folder).has_started else words

    def run(self, task: str, flags: Flags, files: Files, folder: Path, seed: int) -> dict[str, Any]:
        """Make a run, unless it has ended.

        Raises:
            SystemExit: It failed or was stopped.
        """
        if not (folder / "results.json").is_file():
            print(f"{task}: {folder.parent.name}, seed {seed}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "tasks"]
            ended = subprocess.run(
                [*command, *self.words(task, flags, files, folder, seed)],
                env=environment(self.options.threads),
                stdout=subprocess.DEVNULL,
                check=False,
            )
            if ended.returncode != 0:
                raise SystemExit(ended.returncode)
            if not self.options.keep:
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return RunFolder(folder).read_results()

    def score(self, task: str, flags: Flags, files: Files) -> float:
        """Mean of the monitored metric of a candidate over the seeds to choose with."""
        folder = self.folder(task, "choosing", name_of(flags))
        results = [
            self.run(task, flags, files, folder / f"seed-{seed}", seed)
            for seed in self.options.choose_seeds
        ]
        return statistics.fmean(one["metrics"][MONITORS[task]] for one in results)

    def choose(self, task: str) -> Flags:
        """Find the flags that are best on the held-out fifth, unless they have been found."""
        file = self.folder(task, "choice.json")
        if file.is_file():
            return tuple(json.loads(file.read_text(encoding="utf-8"))["flags"])
        files = self.held_out(task)
        scores: dict[Flags, float] = {}
        for candidates in rounds(task, extras=self.options.extras):
            for flags in candidates(best_of(scores)):
                scores[flags] = self.score(task, flags, files)
        best = best_of(scores)
        tried = [{"flags": list(flags), "held_out": score} for flags, score in scores.items()]
        content = {"flags": list(best), "tried": tried, "seeds": self.options.choose_seeds}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return best

    def recipe(self, task: str, name: str) -> Flags:
        """The flags of a recipe."""
        if name == "chosen":
            return self.choose(task)
        if name == "plain":
            return PLAIN if task == "squad" else (*PLAIN, *POOLED)
        return tuple(filter(None, name.partition(":")[2].split(",")))

    def everything(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Make all runs that are missing, a task after the other.

        Yields:
            Task, recipe, and the results of its seeds.
        """
        options = self.options
        for task in options.tasks:
            for recipe in options.recipes:
                if options.table and recipe == "chosen" and not self._has_chosen(task):
                    continue
                flags = self.recipe(task, recipe)
                yield (
                    task,
                    recipe,
                    [
                        self.run(task, flags, self.official(task), folder, seed)
                        for seed in options.seeds
                        if (folder := self.folder(task, name_of((recipe,)), f"seed-{seed}"))
                        and (not options.table or (folder / "results.json").is_file())
                    ],
                )

    def _has_chosen(self, task: str) -> bool:
        return self.folder(task, "choice.json").is_file()


def rounds(task: str, *, extras: bool) -> Iterator[Callable[[Flags], list[Flags]]]:
    """What is tried one after the other, each round on top of the best so far."""
    yield lambda _: [(f"--learning-rate={rate}",) for rate in RATES]
    if task != "squad":
        yield lambda best: [(*best, *POOLED)]
    if extras:
        yield lambda best: [(*best, *extra) for extra in EXTRAS]


def best_of(scores: dict[Flags, float]) -> Flags:
    """The flags of the highest score; of equals the first, which is the plainer one."""
    return max(scores, key=lambda flags: scores[flags], default=())


def name_of(flags: Sequence[str]) -> str:
    """A folder's name for flags."""
    return re.sub(r"[^\w.-]+", "_", "+".join(flag.removeprefix("--") for flag in flags))


def environment(threads: int | None) -> dict[str, str]:
    """Of a run: `tasks` is found from anywhere, threads are set before torch is read."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    added = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return {**os.environ, **added, "PYTHONPATH": os.pathsep.join(paths)}


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--encoder", required=True, help="Hugging Face folder or name, or checkpoint")
    add("--data", type=Path, required=True, help="folder with glue_data/, squad/ and race/")
    add("--out", type=Path, required=True, help="folder of all runs")
    add("--tasks", type=names, default=list(TASKS), help=f"any of {', '.join(TASKS)}")
    add("--recipes", nargs="+", default=["plain", "config"], help="plain, config, config:FLAGS")
    add("--choose", action="store_true", help="choose a recipe on training data, and run it too")
    add("--choose-seeds", type=numbers, default=[1], help="such as 1,2")
    add("--choose-rows", type=int, help="choose on a sample of this many rows or questions")
    add("--extras", action="store_true", help="choose among layer-wise decay and LP-FT too")
    add("--limit", type=limit, nargs="*", default=[], help="TASK=ROWS: train on a sample (GLUE)")
    add(
        "--race-questions",
        type=int,
        default=4000,
        help="number of RACE questions to train on; 0 = all",
    )
    add("--seeds", type=numbers, default=[1, 2, 3], help="such as 1,2,3")
    add("--threads", type=int, help="threads of torch in each run; default: all cores")
    add("--keep", action="store_true", help="keep the weights of finished runs")
    add("--table", action="store_true", help="run nothing; print the table of finished runs")
    options = parser.parse_args(words)
    options.limit = dict(options.limit)
    if unknown := [word for word in options.tasks if word not in TASKS]:
        parser.error(f"--tasks: expected {', '.join(TASKS)}, got {', '.join(unknown)}")
    legal = ("plain", "config", "chosen")
    if unknown := [word for word in options.recipes if word.partition(":")[0] not in legal]:
        parser.error(f"--recipes: expected {', '.join(legal)}, got {', '.join(unknown)}")
    if options.choose and "chosen" not in options.recipes:
        options.recipes.append("chosen")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Make all runs and print the table; it is also written to OUT/table.md."""
    options = parse(words)
    driver = Driver(options)
    every_result = []
    for task, recipe, results in driver.everything():
        if results:
            every_result.append((task, recipe, results))
            print(table(every_result[-1:], header=len(every_result) == 1), flush=True)
    text = table(every_result) + "\n"
    Path(options.out).mkdir(parents=True, exist_ok=True)
    (Path(options.out) / "table.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
