#!/usr/bin/env bash
# Decode worker: DeepSeek-V4-Flash NVFP4 on four cards.
#
# Started and restarted by the supervisor; its output goes to run/worker.log.
# Change one thing at a time, and write down in plan/ what came of it.
set -euo pipefail

cd "$$(dirname "$${BASH_SOURCE[0]}")"

# The engine has an environment of its own.
export VIRTUAL_ENV="$$PWD/opt/venv"
export PATH="$$VIRTUAL_ENV/bin:$$PATH"
export PYTHONPATH="$$PWD/opt/sglang"

# Sparse indexer: the fallback path gathers [batch, context] buffers that do not fit at this context length.
export SGLANG_OPT_USE_TILELANG_INDEXER=1

# 2026-06-18: off. With the side streams on, captured decode mixed up tool calls. See the plan's log.
export SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0

exec python3 -m sglang.launch_server \
    --model-path /models/DeepSeek-V4-Flash-NVFP4 \
    --served-model-name deepseek-v4-flash \
    --trust-remote-code \
    --tp 4 \
    --host 127.0.0.1 \
    --port $port \
    --mem-fraction-static 0.82 \
    --max-running-requests 256 \
    $graphs \
    --disable-overlap-schedule \
    --tool-call-parser deepseekv4 \
    --reasoning-parser deepseek-v4 \
    --watchdog-timeout 3600 \
    --enable-metrics$more
