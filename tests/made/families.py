"""Small files of each family in their official forms, over the words of the tests' corpus."""

from __future__ import annotations

import io
import json
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.made.texts import WORDS, has_the, sentences, write_csv, write_json, write_lines
from tests.made.world import SHAPE

CONFIG = f"""\
{SHAPE}max_length: 32
loader: {{batch_size: 8}}
optimizer: {{learning_rate: 1.0e-2}}
length: {{max_epochs: 2}}
trainer: {{log_every_steps: 5}}
tracking: {{wandb: false}}
"""
SPAN_CONFIG = CONFIG + "windows: {stride: 4, max_question_length: 8}\nspans: {n_best: 5}\n"
OPTIONS = ("cat", "dog", "bird", "tree")


def squad(seed: int, paragraphs: int, *, impossible: bool = True, answers: bool = True) -> Any:
    """SQuAD-form JSON: which word comes after `the`?"""
    rng = random.Random(seed)
    made = []
    for number in range(paragraphs):
        context = " ".join(rng.choices(WORDS, k=rng.randint(9, 40)))
        word = rng.choice(context.split())
        questions: list[dict[str, Any]] = [
            {
                "id": f"{seed}-{number}",
                "question": f"where is the {word}",
                "answers": [{"text": word, "answer_start": context.index(word)}] if answers else [],
            }
        ]
        if impossible:
            questions[0]["is_impossible"] = False
            questions.append(
                {
                    "id": f"{seed}-{number}-none",
                    "question": "where is the king",
                    "answers": [],
                    "is_impossible": True,
                    "plausible_answers": [{"text": word, "answer_start": context.index(word)}],
                }
            )
        made.append({"context": context, "qas": questions})
    version = "v2.0" if impossible else "1.1"
    return {"version": version, "data": [{"title": "Words", "paragraphs": made}]}


def race(seed: int, number: int, level: str) -> dict[str, Any]:
    """A RACE passage of two questions, one with a blank."""
    rng = random.Random(f"{seed} {number} {level}")
    words = sentences(seed + number, 2)
    return {
        "id": f"{level}{number}.txt",
        "article": "\n".join(words),
        "questions": ["The _ sees the house.", "Who likes the river?"],
        "options": [list(OPTIONS), list(OPTIONS)],
        "answers": [rng.choice("ABCD"), rng.choice("ABCD")],
    }


@dataclass(frozen=True)
class Files:
    """Where the small files lie."""

    data: Path
    config: Path
    span_config: Path

    def own(self, name: str) -> Path:
        """A file of the user's own."""
        return self.data / "own" / name


def write_families(root: Path) -> Files:
    """Write SQuAD, RACE, and tables of the user's own."""
    files = Files(root / "data", root / "fit.yaml", root / "spans.yaml")
    files.config.parent.mkdir(parents=True, exist_ok=True)
    files.config.write_text(CONFIG)
    files.span_config.write_text(SPAN_CONFIG)
    _write_squad(files.data / "squad")
    _write_race(files.data / "race")
    _write_own(files.data / "own")
    return files


def _write_squad(folder: Path) -> None:
    for version in ("1.1", "2.0"):
        for split, seed, count in (("train", 1, 24), ("dev", 2, 8)):
            content = squad(seed, count, impossible=version == "2.0")
            write_json(folder / f"{split}-v{version}.json", content)
    withheld = squad(3, 4, impossible=False, answers=False) | {"version": "v2.0"}
    write_json(folder / "test-v2.0.json", withheld)


def _write_race(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "RACE.tar.gz", "w:gz") as archive:
        for split, seed, count in (("train", 1, 8), ("dev", 50, 3), ("test", 90, 2)):
            for level in ("middle", "high"):
                for number in range(count):
                    content = json.dumps(race(seed, number, level)).encode()
                    member = tarfile.TarInfo(f"RACE/{split}/{level}/{number}.txt")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


def _write_own(folder: Path) -> None:
    for split, seed, count in (("train", 1, 40), ("validation", 2, 16), ("test", 3, 8)):
        texts = sentences(seed, count)
        rows = [[text, "with the" if has_the(text) else "without"] for text in texts]
        write_csv(folder / f"{split}.csv", ["text", "label"], rows)
        write_lines(folder / f"{split}-answers.jsonl", map(_span_row, texts, range(count)))
        write_lines(folder / f"{split}-choices.jsonl", map(_choice_row, texts, range(count)))
        write_lines(folder / f"{split}-pairs.jsonl", map(write_row, texts))


def _span_row(text: str, number: int) -> dict[str, Any]:
    word = text.split()[2]
    answers = [{"text": word, "answer_start": text.index(word)}]
    return {"id": f"q{number}", "question": "who is it", "context": text, "answers": answers}


def write_row(text: str) -> dict[str, Any]:
    """A source, and a target that is its last three words backwards."""
    return {"source": text, "target": " ".join(text.split()[:-4:-1])}


def _choice_row(text: str, number: int) -> dict[str, Any]:
    return {
        "context": text,
        "question": "who is it",
        "options": ["cat", "dog", "bird"],
        "answer": ["A", 1, "bird"][number % 3],
    }
