"""What the parts of `gpu.py` share: how large they are, and where their figures go."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large the parts are."""

    base: Row
    """What differs from `configs/pretrain/base.yaml` in the encoder of the measured steps."""
    small: Row
    """The encoder of the checks."""
    pretrain_lengths: tuple[int, ...]
    tuning_texts: dict[str, int]
    """Texts whose lengths a fine-tuning step has (`contest.TOKENS`) -> the longest."""
    batch_tokens: int
    """Tokens of a pretraining batch, whatever its length."""
    ten_minutes_rows: int
    """Sequences that a run of `ten-minutes.yaml` computes at once."""
    tuning_rows: int
    """Sequences of a fine-tuning batch."""
    check_vocabulary: int
    check_length: int
    check_rows: int
    check_steps: int
    """Steps of the runs that are compared."""
    corpus_tokens: int
    """Of the random text that the loop reads."""
    measured_seconds: float
    """Of one figure, at most."""


BLOCKS = "num_hidden_layers"
FULL = Scale(
    base={},
    small={
        "hidden_size": 256,
        BLOCKS: 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    pretrain_lengths=(128, 512),
    tuning_texts={"cola": 128, "rte": 128, "squad": 384},
    batch_tokens=32 * 512,
    ten_minutes_rows=512,
    tuning_rows=32,
    check_vocabulary=2000,
    check_length=128,
    check_rows=32,
    check_steps=300,
    corpus_tokens=1_500_000,
    measured_seconds=4.0,
)
TINY = Scale(
    base={"hidden_size": 16, BLOCKS: 1, "num_attention_heads": 2, "intermediate_size": 16},
    small={"hidden_size": 16, BLOCKS: 2, "num_attention_heads": 2, "intermediate_size": 32},
    pretrain_lengths=(16,),
    tuning_texts={"cola": 128, "squad": 384},
    batch_tokens=32,
    ten_minutes_rows=1,
    tuning_rows=4,
    check_vocabulary=300,
    check_length=16,
    check_rows=4,
    check_steps=12,
    corpus_tokens=4_000,
    measured_seconds=0.01,
)


@dataclass
class Bench:
    """What a part is given, and where it puts its figures."""

    scale: Scale
    device: Any
    """torch's."""
    seconds: float
    """How long the part may take."""
    save: Callable[[dict[str, list[Row]]], None] = lambda tables: None
    """Takes the figures so far: those of a part that is stopped are not lost."""
    tables: dict[str, list[Row]] = field(default_factory=dict)
    """Title -> rows."""
    start: float = field(default_factory=time.perf_counter)

    def left(self) -> float:
        """Seconds that the part has left."""
        return self.start + self.seconds - time.perf_counter()

    def add(self, table: str, **row: Any) -> None:
        """Put down a row of figures."""
        self.tables.setdefault(table, []).append(row)
        self.save(self.tables)

    def check(self, what: str, value: float, limit: float) -> None:
        """Put down a figure that must not exceed a limit; one that is no number does."""
        self.add("checks", check=what, value=value, limit=limit, passed=bool(value <= limit))

    def attempt(self, table: str, title: Row, figures: Callable[[], Row]) -> None:
        """Put down what a measurement gives, or why it gives nothing; the part goes on."""
        try:
            self.add(table, **title, **figures())
        except (ModuleNotFoundError, TimeoutError) as error:  # no fault of what is measured
            self.add(table, **title, left_out=str(error))
        except Exception as error:
            traceback.print_exc()
            self.add(table, **title, failed=reason(error))


def reason(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
