#!/usr/bin/env bash
# Decode worker of a campaign: the seeds' worker, on port @PORT@.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"

# The engine has an environment of its own.
export PATH="$PWD/opt/venv/bin:$PATH"
export PYTHONPATH="$PWD/opt/sglang"

# Sparse indexer: the fallback path gathers buffers that do not fit at this context length.
export SGLANG_OPT_USE_TILELANG_INDEXER=1

# Off: with the side streams on, captured decode mixed up tool calls.
export SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0

exec python3 -m sglang.launch_server \
    --model-path /models/DeepSeek-V4-Flash-NVFP4 \
    --served-model-name deepseek-v4-flash \
    --trust-remote-code \
    --tp 4 \
    --host 127.0.0.1 \
    --port @PORT@ \
    --mem-fraction-static 0.82 \
    --max-running-requests 256 \
    --cuda-graph-max-bs 32 \
    --disable-overlap-schedule \
    --tool-call-parser deepseekv4 \
    --reasoning-parser deepseek-v4 \
    --watchdog-timeout 3600 \
    --enable-metrics
