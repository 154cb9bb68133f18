"""Throughput by a team's own benchmark instead of our bursts: a command on the worker's host, and the file it writes.

The command is started once for each concurrency and run, and has to write what vLLM's or SGLang's `bench_serving`
writes (`bench_serving.py`) into the file that it is told. In it stand for themselves

    {concurrency} {seed} {base_url} {output}

A file that is missing, garbled, from another run or of another concurrency is no data, which keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agent.domain import Check, Phase, Reading
from agent.errors import HostError
from tools.bench_serving import METRIC, UNIT, NotABenchmark, readings_of
from tools.host import Host
from tools.measured import nothing
from tools.serve_script.secrets import mask, mask_argv

Tell = Callable[[str, float | None], None]
"""Hears what is being done, and which share of it is done."""
FORGET_SECONDS = 30.0
OUTPUT = "{output}"
"""The place of the file's path in the command; every command needs it."""


def throughput(
    host: Host,
    command: Sequence[str],
    *,
    base_url: str,
    check: Check,
    phase: Phase,
    seed: int,
    limit_seconds: float,
    clock: Callable[[], float],
    tell: Tell,
) -> tuple[Reading, ...]:
    """Run the benchmark as often as a check asks and read its results.

    Args:
        host: The worker's host, where the command is run.
        command: Its argv, with the places above.
        base_url: Where the load goes.
        check: Which concurrencies, and how many runs at each.
        phase: What the worker is meanwhile.
        seed: No two runs get the same one.
        limit_seconds: When it ends at the latest.
        clock: Seconds that only go forward.
        tell: Hears each line that the command prints; may raise to end it.

    Returns:
        One throughput_tokens_per_second for each concurrency of the check, and failed_requests of all runs.
    """
    ends, total = clock() + limit_seconds, check.count * len(check.concurrency)
    texts: dict[int, list[str]] = {size: [] for size in check.concurrency}
    troubles: dict[int, str] = {}
    for number in range(total):
        size = check.concurrency[number % len(check.concurrency)]
        output = f"{host.directory}/benchmark-{phase}-{seed}-{number}.json"
        places = {
            "{concurrency}": str(size),
            "{seed}": str(1000 * seed + number),
            "{base_url}": base_url,
            OUTPUT: output,
        }
        said = f"own benchmark, run {number + 1} of {total}, {size} in flight"
        left = ends - clock()
        if left <= 0:
            troubles.setdefault(size, "the time was over before it was run")
            continue
        tell(said, number / total)
        argv = [_filled(word, places) for word in command]
        try:
            texts[size].append(_result(host, argv, output, size, left, partial(tell, said, None)))
        except (HostError, NotABenchmark) as problem:
            troubles.setdefault(size, mask(str(problem)))
    source = f"own benchmark: {' '.join(mask_argv(list(command)))}"
    return _readings(texts, troubles, check, phase, source)


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def _result(host: Host, argv: Sequence[str], output: str, size: int, left: float, heard: Callable[[], None]) -> str:
    """Run the benchmark once; what it wrote, if that is one run at the concurrency that was asked for.

    Raises:
        HostError: it could not be run, did not end in time, or wrote no file.
        NotABenchmark: it failed, or wrote something else.
    """
    _forget(host, output)
    try:
        with host.stream(argv, silence=left) as lines:
            last = ""
            for line in lines:
                last = line.decode("utf-8", "replace").strip() or last
                heard()
            status = lines.status
        if status != 0:
            raise NotABenchmark(f"the benchmark ended with status {status}; its last words: {last[-200:] or 'none'}")
        text = host.read(output).decode("utf-8", "replace")
    finally:
        _forget(host, output)
    places = {one.concurrency for one in readings_of(text, "baseline") if one.metric == METRIC}
    if places != {size}:
        found = ", ".join("no fixed number" if place is None else str(place) for place in places)
        raise NotABenchmark(f"the benchmark was run with {found} in flight, and {size} were asked for")
    return text


def _forget(host: Host, output: str) -> None:
    """Leave no file behind, and read none from before."""
    host.run(["rm", "-f", "--", output], timeout=FORGET_SECONDS)


def _readings(
    texts: Mapping[int, Sequence[str]], troubles: Mapping[int, str], check: Check, phase: Phase, source: str
) -> tuple[Reading, ...]:
    every = "\n".join(text for some in texts.values() for text in some)
    found = readings_of(every, phase, source=source) if every else ()
    by_size = {one.concurrency: one for one in found if one.metric == METRIC}
    readings = []
    for size in check.concurrency:
        why = troubles.get(size, "it was not run")
        reading = by_size.get(size, nothing(METRIC, phase, UNIT, why, source, size))
        if size in troubles and reading.no_data is None:
            lost = check.count - len(texts[size])
            detail = f"{lost} of {check.count} runs brought nothing: {why}; {reading.detail}"
            reading = reading.model_copy(update={"detail": detail})
        readings.append(reading)
    failed = [one for one in found if one.metric == "failed_requests"]
    why = next(iter(troubles.values()), "it was not run")
    return (*readings, failed[0] if failed else nothing("failed_requests", phase, "share", why, source))
