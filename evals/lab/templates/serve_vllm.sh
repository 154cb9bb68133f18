#!/usr/bin/env bash
# Decode worker: DeepSeek-V4-Flash NVFP4 on four cards, vLLM.
#
# Started and restarted by whoever keeps it; its output goes to the worker's log.
# Change one thing at a time, and write down in plan/ what came of it.
set -euo pipefail

cd "$$(dirname "$${BASH_SOURCE[0]}")"

# The engine has an environment of its own.
export VIRTUAL_ENV="$$PWD/opt/venv"
export PATH="$$VIRTUAL_ENV/bin:$$PATH"

# 2026-06-18: off. With the side streams on, captured decode mixed up tool calls. See the plan's log.
export VLLM_DISABLE_SHARED_EXPERTS_STREAM=1

exec vllm serve /models/DeepSeek-V4-Flash-NVFP4 \
    --served-model-name deepseek-v4-flash \
    --trust-remote-code \
    --tensor-parallel-size 4 \
    --host 127.0.0.1 \
    --port $port \
    --max-model-len 262144 \
    --gpu-memory-utilization 0.85 \
    --max-num-seqs 256 \
    --max-cudagraph-capture-size $capture \
    --no-async-scheduling \
    --enable-auto-tool-choice \
    --tool-call-parser deepseek_v4 \
    --reasoning-parser deepseek_v4$more
