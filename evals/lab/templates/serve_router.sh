#!/usr/bin/env bash
# Router before the prefill worker and the decode worker: users send their requests here.
#
# Started and restarted by its service; its output goes to run/worker.log.
set -euo pipefail

cd "$$(dirname "$${BASH_SOURCE[0]}")"

export VIRTUAL_ENV="$$PWD/opt/venv"
export PATH="$$VIRTUAL_ENV/bin:$$PATH"
export PYTHONPATH="$$PWD/opt/sglang"

exec python3 -m sglang_router.launch_router \
    --pd-disaggregation \
    --mini-lb \
    --prefill http://127.0.0.1:$prefill $bootstrap \
    --decode http://127.0.0.1:$decode \
    --host 127.0.0.1 \
    --port $port
