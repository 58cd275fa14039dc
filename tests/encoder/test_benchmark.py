from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from finetune.encoder import EncoderConfig
from finetune.encoder.benchmark import (
    bench,
    bench_table,
    ceiling_share,
    matmul_ceiling,
    median_step_ms,
    peak_gib,
    timed,
)

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def tiny() -> EncoderConfig:
    return EncoderConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )


def test_the_ceiling_is_a_rate_that_machines_have() -> None:
    assert 0.1 < matmul_ceiling(CPU, torch.float32, seconds=0.01) < 1e5


def test_measuring_the_ceiling_moves_no_random_numbers() -> None:
    before = torch.get_rng_state()
    matmul_ceiling(CPU, torch.float32, seconds=0.01)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_is_repeated_for_the_time_given_after_warming_up() -> None:
    calls = []
    times = timed(lambda: calls.append(time.sleep(0.01)), CPU, seconds=0.1, warmup=3)
    assert len(calls) == len(times) + 3
    assert 2 <= len(times) <= 10
    assert min(times) >= 0.01


def test_a_step_longer_than_the_time_is_measured_once() -> None:
    assert len(timed(lambda: time.sleep(0.01), CPU, seconds=0.0, warmup=0)) == 1


def test_the_median_is_in_milliseconds() -> None:
    assert 10 <= median_step_ms(lambda: time.sleep(0.01), CPU, seconds=0.05) < 1000


@pytest.mark.skipif(not STATUS.exists(), reason="reads Linux's own account of a process")
def test_peak_memory_is_what_the_system_says() -> None:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    assert peak_gib(CPU) == pytest.approx(int(line.split()[1]) / 2**20, rel=0.1)


def test_share_counts_forward_and_backward() -> None:
    assert ceiling_share(1000.0, 2e6, ceiling_gflops=60.0) == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bench_measures_a_training_step(dtype: torch.dtype) -> None:
    result = bench(tiny(), CPU, dtype=dtype, batch_size=2, length=8, seconds=0.01)
    assert (result["device"], result["dtype"]) == ("cpu", str(dtype).removeprefix("torch."))
    assert result["tokens_per_second"] == pytest.approx(16 / result["step_ms"] * 1e3)
    assert result["forward_ms"] > 0
    assert 0 < result["ceiling_share"] < 1
    assert result["peak_gib"] > 0


def test_the_table_has_a_column_for_each_measurement() -> None:
    result = bench(tiny(), CPU, batch_size=2, length=8, seconds=0.01)
    lines = bench_table({"tiny": result, "again": result}).splitlines()
    assert lines[0].split() == ["tiny", "again"]
    assert [line.split()[0] for line in lines[1:]] == list(result)


def test_a_table_of_three_with_long_names_fits_a_terminal() -> None:
    result = bench(tiny(), CPU, batch_size=1, length=8, seconds=0.01)
    result["device"] = "NVIDIA GeForce RTX 4090 Laptop GPU"
    names = [f"runs/a-long-name-of-a-folder/run-{number}" for number in range(3)]
    lines = bench_table(dict.fromkeys(names, result)).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == [f"…-of-a-folder/run-{number}" for number in range(3)]


@pytest.mark.gpu
def test_bench_runs_on_a_gpu() -> None:
    result = bench(tiny(), torch.device("cuda"), dtype=torch.bfloat16, seconds=0.1)
    assert result["ceiling_gflops"] > 1000
    assert result["peak_gib"] > 0
