"""What stands where the engine would: the process with its argv and environment, that holds the port and says nothing.

It is the whole body of `sglang.launch_server` in a campaign's ground; what it would print and answer is computed
elsewhere, on virtual time. It ends when its folder is gone or the process that made the ground is.
"""

import os
import signal
import socket
import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[3]
    port = int(sys.argv[sys.argv.index("--port") + 1])
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    held.listen(16)
    (root / "run" / f"listening-{os.getpid()}").touch()
    owner = (root / "run" / "owner").read_text(encoding="ascii")
    while Path(f"/proc/{owner}").exists() and root.exists():
        signal.sigtimedwait([signal.SIGTERM], 5.0)
