"""How fast answers are read off the logits of a span head: windows a second, on one core.

From logits to the rows of a predictions file: the best spans of each window (`Span.outputs`),
then the answers to the questions (`span_answers`). The encoder is left out. The time is the
processor's, which other processes on the core do not lengthen much; the clock's stands beside it.

    OMP_NUM_THREADS=1 python benchmarks/spans.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from finetune.encoder import EncoderConfig
from finetune.heads import HeadConfig, Span, SpanConfig
from finetune.task.answers.spans import span_answers
from finetune.task.interface import Example
from finetune.text.features.pairs import Features

QUESTION_TOKENS = 16
WORD = "words "


def questions(count: int, length: int) -> tuple[list[Example], list[Features]]:
    """Make questions whose context fills one window; every ninth has a second window."""
    tokens = length - QUESTION_TOKENS - 1
    starts = np.arange(tokens, dtype=np.int32) * len(WORD)
    offsets = np.stack((starts, starts + len(WORD) - 1), axis=1)
    # Each word differs, so that no span's text is that of another one.
    context = "".join(f"{number:0{len(WORD) - 1}d} " for number in range(tokens))
    windows = [
        Features([0] * length, [0] * length, example=number, context=(QUESTION_TOKENS, length - 1))
        for number in range(count)
        for _ in range(2 if number % 9 == 0 else 1)
    ]
    for window in windows:
        window.offsets = offsets
    return [Example(number, ("question", context)) for number in range(count)], windows


def read(
    head: Span, logits: torch.Tensor, examples: list[Example], windows: list[Features], batch: int
) -> tuple[float, float]:
    """Go from logits to answers once; returns the processor's seconds for both parts."""
    start = time.process_time()
    outputs = []
    for first in range(0, len(windows), batch):
        part = windows[first : first + batch]
        context = torch.tensor([window.context for window in part])
        outputs.append(head.outputs(logits[: len(part)], {"context": context}))
    gathered = torch.cat(outputs).numpy()
    middle = time.process_time()
    span_answers(gathered, examples, windows, n_best=head.spans.n_best, allow_null=True)
    return middle - start, time.process_time() - middle


def main(words: Sequence[str] | None = None) -> None:
    """Print windows a second: the median of some repetitions, and the range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=4000)
    parser.add_argument("--length", type=int, default=384, help="tokens in a sequence")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    settings = parser.parse_args(words)
    torch.set_num_threads(1)
    head = Span(
        EncoderConfig(vocab_size=8, hidden_size=8, num_attention_heads=1),
        HeadConfig(),
        SpanConfig(),
    )
    logits = torch.randn(settings.batch_size, settings.length, 2)
    examples, windows = questions(settings.questions, settings.length)
    clock = time.perf_counter()
    times = [
        read(head, logits, examples, windows, settings.batch_size) for _ in range(settings.repeats)
    ]
    clock = (time.perf_counter() - clock) / settings.repeats
    speeds = sorted(len(windows) / sum(parts) for parts in times)
    spans, answers = (statistics.median(part) for part in zip(*times, strict=True))
    print(
        f"{len(windows)} windows of {settings.length} tokens, {settings.questions} questions, "
        f"n_best {head.spans.n_best}, answers of up to {head.spans.max_answer_length} tokens\n"
        f"{statistics.median(speeds):,.0f} windows/s "
        f"({speeds[0]:,.0f} to {speeds[-1]:,.0f}, {settings.repeats} times); "
        f"by the clock {len(windows) / clock:,.0f}\n"
        f"best spans {1e6 * spans / len(windows):.0f} us a window, "
        f"answers {1e6 * answers / len(windows):.0f} us a window"
    )


if __name__ == "__main__":
    main()
