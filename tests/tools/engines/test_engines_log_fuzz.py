"""Nothing in a log can stop a reader, whatever crashed, rotated or interleaved its writers."""

import io
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.engines import log_lines, sglang_lines, sglang_log, vllm_lines, vllm_log
from tools.engines.facts import Log
from tools.engines.settings_text import read_settings
from tools.engines.sglang_memory import forecast

DATA = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
TEXTS = [path.read_bytes() for path in sorted(DATA.glob("*/startup.log"))]
TELLING = [
    line
    for text in TEXTS
    for line in text.split(b"\n")
    if b"GB" in line or b"server_args" in line or b"rror" in line or b"ready to roll" in line or b"Decode" in line
]
NOISE = [
    b"\x00",
    b"\xff\xfe",
    b"\r",
    b"\n",
    b"\x1b[1;33m",
    b"\x1b[",
    b"[20",
    b"[2026-11-29 15:07:27",
    b"] ",
    b" GB",
    b"=",
    b"((((",
    b"'",
    b"9" * 400,
    b"-",
    b".",
    b"nan",
    b"\xe2\x96\x88",
]
"""Pieces that hurt parsers: half escapes, half stamps, half characters, numbers without end."""  # fmt: skip


def mangled(seed, pieces):
    """A log that is spliced from recordings and then mutated, the same for the same seed."""
    dice = random.Random(seed)
    parts = []
    for _ in range(pieces):
        if dice.random() < 0.5:
            text = dice.choice(TEXTS)
            begin = dice.randrange(len(text))
            parts.append(text[begin : begin + dice.randrange(4000)])
        else:
            line = dice.choice(TELLING)
            parts.append(line[dice.randrange(len(line)) if dice.random() < 0.5 else 0 :])
        parts.append(dice.choice([b"\n", b"", b"\r", b"\r\n"]))
    log = bytearray(b"".join(parts))
    for _ in range(dice.randrange(40)):
        if not log:
            break
        at = dice.randrange(len(log))
        kind = dice.randrange(4)
        if kind == 0:
            log[at] = dice.randrange(256)
        elif kind == 1:
            del log[at : at + dice.randrange(30)]
        elif kind == 2:
            log[at:at] = dice.choice(NOISE)
        else:
            log[at:at] = log[at : at + dice.randrange(200)]
    return bytes(log)


@pytest.mark.parametrize("reader", [sglang_log.read_log, vllm_log.read_log], ids=["sglang", "vllm"])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), pieces=st.integers(0, 25))
def test_a_mangled_log_is_read_to_its_end(reader, seed, pieces):
    """It gives facts that survive their own JSON, and a forecast from them that raises nothing either."""
    lines = list(log_lines.lines_of(io.BytesIO(mangled(seed, pieces))))

    log = reader(lines)

    assert log.lines == len(lines)
    assert Log.model_validate_json(log.model_dump_json()) == log
    if log.facts is not None and log.facts.engine == "sglang":
        found = forecast(facts=log.facts, change={"cuda-graph-max-bs": "96"}, floor_gb=6.0)
        assert all(row.then.low <= row.then.high for row in found.rows)


@settings(max_examples=300, deadline=None)
@given(line=st.binary(max_size=300) | st.builds(lambda seed: mangled(seed, 1)[:2000], st.integers(0, 2**32)))
def test_any_line_can_be_asked_what_it_is(line):
    """Fragments lose nothing but terminal sequences, and each can be explained or is unknown."""
    found = list(log_lines.fragments(line))

    if b"\x1b" not in line:
        assert b"".join(found) == line.replace(b"\r", b"")
    for fragment in found:
        sglang_lines.explain(fragment)
        vllm_lines.explain(fragment)


@pytest.mark.parametrize(
    "line",
    [
        b"[2026-11-29 15:07:27] Capture cuda graph begin" + b" backend=x" * 6000,
        b"[2026-11-29 15:07:27] Load weight end. type=x," + b" avail mem=1" * 5000,
        b"[2026-11-29 15:07:27] server_args=ServerArgs(" + b"a=(" * 20000,
        b"Error: " * 9000,
        b"[2026-11-29 15:07:27" * 3000,
        b"\x1b[" * 30000,
        b"CUDA out of memory. Tried to allocate " + b"9" * 60000 + b" GiB",
        b"2026-11-29T15:07:27Z " * 3000 + b"RuntimeError: Not enough memory",
    ],
    ids=lambda line: line[22:50].decode(errors="replace"),
)
def test_a_line_that_is_made_to_hurt_is_passed_over(line):
    """64 KB that invite a pattern to look again and again."""
    assert sglang_log.read_log([line] * 3).lines == 3
    assert vllm_log.read_log([line] * 3).lines == 3
    if b"\x1b" not in line:
        assert b"".join(log_lines.fragments(line)) == line


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=4000), after=st.integers(0, 5000))
def test_lines_are_those_of_the_file(content, after):
    """From the offset, or from the start where the file has become shorter."""
    begin = after if after <= len(content) else 0
    expected = content[begin:].split(b"\n")
    if expected[-1] == b"":
        expected.pop()

    assert list(log_lines.lines_of(io.BytesIO(content), after=after)) == expected


def test_a_line_without_end_is_cut_and_the_next_is_whole():
    """Ten MB without a newline do not fill memory, and what comes after is read."""
    content = b"x" * 10_000_000 + b"\n" + b"next\n" + b"y" * 3_000_000

    first, second, third = log_lines.lines_of(io.BytesIO(content))

    assert (len(first), second, len(third)) == (log_lines.LONGEST, b"next", log_lines.LONGEST)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="abc_=,'\"()[]{}: \\1.0None", max_size=200))
def test_any_settings_text_is_scanned_and_never_evaluated(text):
    """Whatever brackets and quotes are left open."""
    assert all(isinstance(value, str) for value in read_settings(text).values())


def test_settings_are_flat_and_hold_no_secret():
    """Nested fields become dotted names; keys, passwords and tokens are masked; what is None is left out."""
    found = read_settings(
        "ServerArgs(model_path='/m', port=1, api_key='sesame', none=None, words='a, b=(c', sizes=[1, 2], "
        "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='full', bs=[1, 2]), prefill=None), "
        "ssl_keyfile_password='x')"
    )

    assert found == {
        "model_path": "/m",
        "port": "1",
        "api_key": "***",
        "words": "a, b=(c",
        "sizes": "[1, 2]",
        "cuda_graph_config.decode.backend": "full",
        "cuda_graph_config.decode.bs": "[1, 2]",
        "ssl_keyfile_password": "***",
    }
