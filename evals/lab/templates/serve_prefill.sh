#!/usr/bin/env bash
# Prefill worker: DeepSeek-V4-Flash NVFP4 on four cards. It computes prompts and hands them to the decode worker.
#
# Started and restarted by its service; its output goes to run/worker.log.
set -euo pipefail

cd "$$(dirname "$${BASH_SOURCE[0]}")"

# The engine has an environment of its own.
export VIRTUAL_ENV="$$PWD/opt/venv"
export PATH="$$VIRTUAL_ENV/bin:$$PATH"
export PYTHONPATH="$$PWD/opt/sglang"

# Sparse indexer: the fallback path gathers [batch, context] buffers that do not fit at this context length.
export SGLANG_OPT_USE_TILELANG_INDEXER=1

exec python3 -m sglang.launch_server \
    --model-path /models/DeepSeek-V4-Flash-NVFP4 \
    --served-model-name deepseek-v4-flash \
    --trust-remote-code \
    --tp 4 \
    --host 127.0.0.1 \
    --port $port \
    --mem-fraction-static 0.82 \
    --max-running-requests 256 \
    --disable-overlap-schedule \
    --tool-call-parser deepseekv4 \
    --reasoning-parser deepseek-v4 \
    --watchdog-timeout 3600 \
    --enable-metrics \
    --disaggregation-mode prefill \
    --disaggregation-transfer-backend nixl \
    --disaggregation-bootstrap-port $bootstrap
