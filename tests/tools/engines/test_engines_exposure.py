"""Decode lines -> how much was decoded where a change acts."""

from __future__ import annotations

import pytest

from tools.engines.exposure import exposure, sizes


def _sglang(running: int) -> bytes:
    return (
        f"[2026-07-01 10:00:00] Decode batch, #running-req: {running}, #token: 999, token usage: 0.10, "
        "cuda graph: True, gen throughput (token/s): 800.00, #queue-req: 0"
    ).encode()


def _vllm(running: int, rate: float) -> bytes:
    return (
        f"INFO 07-01 10:00:00 [loggers.py:248] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation "
        f"throughput: {rate} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%"
    ).encode()


def test_a_line_counts_with_its_batch():
    """A line of 96 stands for three times the tokens of one of 32, and the lower end is below the estimate."""
    found = exposure(sizes([*[_sglang(32)] * 30, *[_sglang(96)] * 10]), 32, 96)

    assert found is not None
    assert found.share == pytest.approx(0.5)
    assert 0.3 < found.low < 0.5
    assert found.lines == 40


def test_vllm_lines_count_with_their_rate():
    """A line stands for the tokens of its interval."""
    found = exposure(sizes([*[_vllm(20, 100.0)] * 20, *[_vllm(200, 300.0)] * 20]), 128, 256)

    assert found is not None
    assert found.share == pytest.approx(0.75)


@pytest.mark.parametrize("lines", [[], [b"Decode batch, #running-req: x"], [_sglang(96)] * 7, [_sglang(0)] * 50])
def test_too_few_lines_say_nothing(lines: list[bytes]):
    """A handful of lines, or lines that cannot be read, are no sample."""
    assert exposure(sizes(lines), 32, 96) is None
