"""The client bench sets what clients say beside what a server did."""

from __future__ import annotations

import pytest

from evals.bench.client import Did, Engine, Seen, compare, main, measure
from evals.bench.client_peers import findings


def test_errors_are_what_a_client_says_less_what_was() -> None:
    """The measured burst is the last one, and a client that says what was has no errors."""
    warm = [Did(0.0, 0.1, 1.0, 8)] * 2
    burst = [Did(10.0, 10.5, 12.0, 20), Did(10.0, 10.7, 14.0, 20)]

    row = compare(Seen("one", 0.51, 0.68, 10.1, 1e-5, 5.6), [*warm, *burst], 2, 20)

    assert row[1:] == pytest.approx((0.01, -0.02, 0.01, 5.6 - 1.0 - 4.0))


@pytest.mark.parametrize("name", ["probe", "aiohttp", "openai"])
def test_every_client_gets_every_token(name: str) -> None:
    """Each client takes the whole load, its rate is of all tokens, and the server is gone afterwards."""
    row = measure(name, 4, 8)

    assert row.seen.name == name
    assert row.seen.ttft_p99 >= row.seen.ttft_p50 > 0.1
    assert 0 < row.seen.rate < 4 * 8 / 0.2
    assert row.seen.cpu > 0


def test_the_server_says_what_it_did() -> None:
    """Nothing was asked, nothing was done."""
    assert Engine().close() == []


@pytest.mark.slow
def test_the_command_prints_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    """One command prints the three clients beside each other."""
    assert main(["--quick"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["probe", "aiohttp", "openai"]
    assert all(len(line.split()) >= 9 for line in lines[2:])


def test_a_report_of_another_program_is_searched_by_name() -> None:
    """A figure is found wherever a report keeps it, by its name; what is not there is not made up."""
    report = {"records": {"ttft": {"unit": "ms", "p50": 240.0, "p99": 610.0}}, "other": [{"p50": 1}]}

    assert findings(report, "ttft", ("p50", "p99")) == (240.0, 610.0)
    assert findings(report, "tpot", ("p50", "p99")) is None
