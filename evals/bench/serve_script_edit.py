"""How long does an edit of a long launch script take, without the proof?

    python -m evals.bench.serve_script_edit [--lines 2000] [--runs 30]

writes scripts of that many lines as people write them (functions, arrays, branches, comments, here-documents, echo
lines), plans an edit of the last launch, and prints the median, the fastest and the slowest of the runs. Each run gets
a script that was never seen before. The aim is 50 ms.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from tools.serve_script.edit import plan_edit

_BLOCK = """
# {n}: checks before the start
log "step {n}"
if [[ -n "${{CHECK_{n}:-}}" ]]; then
    mkdir -p "$LOG_DIR/{n}"
    OPT_{n}=--verbose
fi
step_{n}() {{
    local name=$1 limit="${{2:-10}}"
    for i in 1 2 3; do
        curl -sf "http://127.0.0.1:$PORT/health" > /dev/null && break
        sleep "$limit"
    done
    echo "$name: ready on $PORT"  # said once
}}
step_{n} part-{n} 5
cat > "$LOG_DIR/{n}.txt" <<EOF
port $PORT
model $MODEL
EOF
EXTRA_{n}=(
    --log-level info
    # kept for {n}
    --name "part {n}"
)
"""
_HEAD = """#!/usr/bin/env bash
set -euo pipefail
MODEL=${MODEL:-/models/v4}
PORT=${PORT:-31000}
LOG_DIR=./logs
log() { printf '[%s] %s\\n' "$(date)" "$*"; }
MAX_BS=${MAX_BS:-32}
"""
_TAIL = """
SERVER_ARGS=(
    --model-path "$MODEL"
    --port "$PORT"
    --cuda-graph-max-bs "$MAX_BS"
    --mem-fraction-static 0.85
)
exec numactl -N 0 python3 -m sglang.launch_server "${SERVER_ARGS[@]}" >> "$LOG_DIR/server.log" 2>&1
"""


def script(lines: int, first: int) -> bytes:
    """A launch script of about that many lines; `first`: the number of its first step, which makes it another one."""
    text = _HEAD
    n = first
    while text.count("\n") + _TAIL.count("\n") < lines:
        text += _BLOCK.format(n=n)
        n += 1
    return (text + _TAIL).encode()


def seconds(content: bytes) -> float:
    """Seconds that planning one edit takes."""
    start = time.perf_counter()
    edit = plan_edit(content, path="serve.sh", kind="flag", names=["--cuda-graph-max-bs"], operation="set", value="96")
    spent = time.perf_counter() - start
    if b"MAX_BS=${MAX_BS:-96}" not in edit.content:
        raise SystemExit("the edit is wrong")
    return spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=30)
    asked = parser.parse_args()
    scripts = [script(asked.lines, 1000 * (run + 1)) for run in range(asked.runs + 1)]
    seconds(scripts.pop())
    gc.collect()
    spent = sorted(seconds(content) * 1000 for content in scripts)
    lines = scripts[0].count(b"\n")
    print(f"{lines} lines, {asked.runs} edits without the proof: median {statistics.median(spent):.1f} ms,", end=" ")
    print(f"fastest {spent[0]:.1f} ms, slowest {spent[-1]:.1f} ms")


if __name__ == "__main__":
    main()
