"""The benchmarks that need no data run to their end at the smallest sizes.

The others are run by `test_benchmarks_finetuning.py` and `test_benchmarks_unfreezing.py`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALLEST = {
    "corpus": (
        "--megabytes 0.1 --rounds 1 --vocab-size 300".split(),
        r"(wordpiece|bpe): ours .* MB/s  tokenizers .* MB/s  ratio .*opened again in .* s\n",
    ),
    "lightning_overhead": (
        "--rounds 1 --steps 6 --rows 1 --length 16 --examples 192 --threads 1".split(),
        r"pretraining, .*: bare .* s  lightning .* s  .*%\nfine-tuning, .*: bare .* s  lightning",
    ),
    "pretraining": (
        ["--rounds", "1", "--rows", "1", "--length", "16", "--threads", "1"],
        r"(.*: ours .* tokens/s  transformers .* tokens/s  ratio .*\n){2}",
    ),
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
