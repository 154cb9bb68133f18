"""Our client beside GuideLLM and AIPerf: `python -m evals.bench.client_peers`.

Makes an environment for each of them in a temporary folder, installs it from the package index (GuideLLM brings PyTorch
along: some 6 GB in all), lets both load the same server as `client.py` does, in the same run as the clients there, and
removes everything. What cannot be installed or run is a row that says so. Not for CI.

Both want a tokenizer; they get one of some words that is written here, so that nothing is fetched. Their CPU is that
of the whole program, start and warm-up included, over the measured tokens, since they report no other.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evals.bench.client import Engine, Seen, compare, ended, heads, line, measure


class Peer(NamedTuple):
    """A program to compare with."""

    name: str
    """Of its package and of its command."""
    command: Callable[[str, str, Path, int, int], Sequence[str]]
    """Its command line: program, URL, folder with the tokenizer where it may write, streams, tokens."""
    report: str
    """What it leaves in that folder."""
    ttft: str
    """What its report calls the time to the first token, in milliseconds."""
    rate: tuple[str, str]
    """What its report calls tokens a second, and the mean of it."""


class Failed(RuntimeError):
    """A peer could not be installed or run; says why."""


def _aiperf(program: str, url: str, folder: Path, streams: int, tokens: int) -> Sequence[str]:
    return (
        *(program, "profile", "--model", "mock", "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(folder / "tokenizer"), "--isl", "32", "--osl", str(tokens), "--num-dataset-entries", "64"),
        *("--concurrency", str(streams), "--request-count", str(streams), "--warmup-request-count", str(streams)),
        *("--ui", "simple", "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(folder)),
    )


def _guidellm(program: str, url: str, folder: Path, streams: int, tokens: int) -> Sequence[str]:
    return (
        *(program, "run", "--backend", f"kind=openai_http,target={url},model=mock,request_format=/v1/chat/completions"),
        *("--profile", f"kind=concurrent,streams={streams}", "--constraint", f"kind=max_requests,count={streams}"),
        *("--tokenizer", f"kind=hf_auto,model={folder / 'tokenizer'}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={tokens}"),
        *("--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-console-interactive"),
    )


PEERS = (
    Peer(
        "aiperf",
        _aiperf,
        "profile_export_aiperf.json",
        "time_to_first_token",
        ("output_token_throughput", "avg"),
    ),
    Peer("guidellm", _guidellm, "guidellm.json", "time_to_first_token_ms", ("output_tokens_per_second", "mean")),
)


def install(peer: Peer, folder: Path, timeout: float) -> str:
    """Install a peer, and the path of its program; one that is there already is left as it is.

    Raises:
        Failed: it could not be installed.
    """
    program = folder / peer.name / "bin" / peer.name
    if not program.exists():
        venv.create(folder / peer.name, with_pip=True)
        pip = [str(program.parent / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", peer.name]
        _run(pip, folder, timeout, f"{peer.name} could not be installed")
    return str(program)


def load(peer: Peer, program: str, folder: Path, streams: int, tokens: int) -> str:
    """Let an installed peer load a server of its own; the row of the table.

    Raises:
        Failed: it could not be run, or left no report that can be read.
    """
    with ended(Engine()) as engine:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        _run(peer.command(program, engine.url, folder, streams, tokens), folder, 240.0, f"{peer.name} could not be run")
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        did = engine.close()
    report = json.loads((folder / peer.report).read_text(encoding="utf-8"))
    ttft, rate = findings(report, peer.ttft, ("p50", "p99")), findings(report, peer.rate[0], peer.rate[1:])
    if ttft is None or rate is None:
        raise Failed(f"{peer.name} left a report without {peer.ttft} or {peer.rate[0]}")
    if len(did) < streams:
        raise Failed(f"{peer.name} sent {len(did)} requests where {streams} were asked for")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seen = Seen(peer.name, ttft[0] / 1000, ttft[1] / 1000, rate[0], cpu / (streams * tokens), wall, "CPU of all of it")
    return line(compare(seen, did, streams, tokens))


def findings(report: object, name: str, keys: Sequence[str]) -> tuple[float, ...] | None:
    """Figures in a report: under the first `name` in it, the first object that has all the keys; None: none has."""
    for place in _objects(report):
        if isinstance(place.get(name), Mapping):
            for figures in _objects(place[name]):
                if all(isinstance(figures.get(key), (int, float)) for key in keys):
                    return tuple(float(figures[key]) for key in keys)
    return None


def _objects(document: object) -> list[Mapping[str, Any]]:
    """Every object in a document, the outer ones first."""
    found, waiting = [], [document]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, Mapping):
            found.append(one)
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of whole words, in the form that the transformers library reads."""
    letters = [chr(code) for code in range(33, 127)]
    words = dict.fromkeys(["<unk>", "token", *letters, *(one + other for one in letters[:60:4] for other in letters)])
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(words)}, "unk_token": "<unk>"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _run(command: Sequence[str], folder: Path, timeout: float, what: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, cwd=folder, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{what} within {timeout:.0f} s") from error
    if done.returncode:
        said = [text for text in (done.stderr + done.stdout).splitlines() if text.strip()]
        raise Failed(f"{what}: {said[-1] if said else f'status {done.returncode}'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m evals.bench.client_peers", description=about)
    parser.add_argument("--streams", type=int, default=256, help="streams at once")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each stream")
    parser.add_argument(
        "--environments", type=Path, help="folder to keep what is installed in; default: a temporary one"
    )
    parser.add_argument("--install-seconds", type=float, default=900.0, help="how long an installation may take")
    wanted = parser.parse_args(arguments)
    streams, tokens = wanted.streams, wanted.tokens
    with tempfile.TemporaryDirectory(prefix="client-peers-") as scratch:
        kept = wanted.environments or Path(scratch) / "environments"
        for head in heads(streams, tokens):
            print(head, flush=True)
        for name in ("probe", "aiohttp", "openai"):
            print(line(measure(name, streams, tokens)), flush=True)
        for peer in PEERS:
            folder = Path(scratch) / peer.name
            write_tokenizer(folder / "tokenizer")
            try:
                row = load(peer, install(peer, kept, wanted.install_seconds), folder, streams, tokens)
            except (Failed, OSError, ValueError) as error:
                row = f"{peer.name:10} {error}"
            print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
