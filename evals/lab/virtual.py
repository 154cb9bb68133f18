"""The worker in a process whose clock stands still until nothing else is left to do, and then jumps.

    python -m evals.lab.virtual GROUND PROGRAM CONTROL -- WORKER-ARGUMENTS...

The worker is the one that serves in real time, to the last line; only this process's clock and event loop are others.
Connections are pairs of sockets within the process, so that nothing is ever on its way while time moves. Through the
socket whose descriptor is CONTROL whoever started it says one thing at a time, each a line of JSON:

    {"rest": S}                       lets S seconds pass
    {"get": PATH}                     asks the worker; answers status and body
    {"load": PROGRAM, "wish": {...}}  runs a load program's `measure(wish, report)` beside the worker

and hears lines of JSON in the order in which they happened: `{"log": TEXT, "at": T}` for what the worker prints,
`{"open": T}` once its port is, and one `{"done": ..., "at": T}` for each thing that was said. T counts from the start
of the worker's process, in seconds. The end of the stream is the end of the process.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import selectors
import socket
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from evals.lab import cards, private
from evals.lab.vllm_0_24.worker import main as work_as_vllm
from evals.lab.worker import main as work

EPOCH = 1_795_000_000.0
"""Unix time at which every such process starts, in seconds: a day in November 2026."""


class VirtualTime:
    """Seconds since the start, moved by whoever waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Wait, which takes no time."""
        self.now += max(seconds, 0.0)

    def replace(self, clock: Any) -> None:
        """Let the functions of a `time` module tell this time; nothing else in its process may need the real one."""
        real = types.SimpleNamespace(strftime=clock.strftime, localtime=clock.localtime, gmtime=clock.gmtime)
        clock.monotonic = clock.perf_counter = lambda: self.now
        clock.time = lambda: EPOCH + self.now
        clock.time_ns = lambda: int((EPOCH + self.now) * 1e9)
        clock.process_time = lambda: 0.0
        clock.clock_gettime = lambda _: 0.0
        clock.sleep = self.sleep
        clock.localtime = lambda at=None: real.localtime(EPOCH + self.now if at is None else at)
        clock.gmtime = lambda at=None: real.gmtime(EPOCH + self.now if at is None else at)
        clock.strftime = lambda text, at=None: real.strftime(text, clock.localtime() if at is None else at)


class Jumping(selectors.EpollSelector):
    """Looks whether something is ready; if not, the time until the next timer is over at once."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready now.

        Raises:
            RuntimeError: nothing is, and no timer is set: nothing would ever happen again.
        """
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left that could happen")
        if not ready and timeout is not None and timeout > 0:
            self._clock.sleep(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time, with a network of its own.

    Args:
        clock: The time.
        opened: Called once a server listens.
    """

    def __init__(self, clock: VirtualTime, opened: Callable[[], None]) -> None:
        self._virtual = clock
        self._opened = opened
        self._served: dict[int, Callable[[], asyncio.BaseProtocol]] = {}
        super().__init__(Jumping(clock))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """What blocks is done at once: while it lasts no time passes."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as failure:
            done.set_exception(failure)
        return done

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Everything is here."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", int(port)))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, *_: Any, sock: socket.socket, **__: Any
    ) -> Any:
        """Serve a port on this loop's own network; the real one is given back at once."""
        port = sock.getsockname()[1]
        sock.close()
        self._served[port] = protocol_factory
        self._opened()
        return types.SimpleNamespace(close=lambda: None, wait_closed=_nothing, sockets=())

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, _: Any = None, port: Any = None, **more: Any
    ) -> Any:
        """Connect to a port that is served here.

        Raises:
            ConnectionRefusedError: none is.
        """
        if more.get("sock") is not None:
            # What was connected by `sock_connect` calls itself a TCP socket and is none: wrapped anew, it knows.
            made = socket.socket(fileno=more["sock"].detach())
            return await super().create_connection(protocol_factory, sock=made)
        return await super().create_connection(protocol_factory, sock=await self._pair(port))

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connect a socket that somebody has made already.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        with await self._pair(address[1]) as ours:
            os.dup2(ours.fileno(), sock.fileno())

    async def _pair(self, port: int) -> socket.socket:
        serving = self._served.get(port)
        if serving is None:
            raise ConnectionRefusedError(f"nobody listens on port {port}")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await self.connect_accepted_socket(serving, theirs)
        return ours


async def _nothing() -> None:
    pass


class Told(io.TextIOBase):
    """A stream whose text is told with the second at which it came."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._say = say

    def write(self, text: str) -> int:
        """Tell it."""
        self._say({"log": text})
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


class Driver:
    """Does what is said, one thing at a time; while nothing is said no time passes.

    Args:
        control: Where it is said.
        clock: The time.
        port: The worker's.
    """

    def __init__(self, control: socket.socket, clock: VirtualTime, port: int) -> None:
        self._lines = control.makefile("rwb")
        self._clock = clock
        self._port = port

    def say(self, document: Mapping[str, Any]) -> None:
        """Tell something that happened now."""
        self._lines.write(json.dumps({"at": self._clock.now, **document}).encode() + b"\n")
        self._lines.flush()

    async def run(self) -> None:
        """Go on until the other end is closed."""
        self.say({"open": self._clock.now})
        for line in self._lines:
            wish = json.loads(line)
            if "rest" in wish:
                await asyncio.sleep(wish["rest"])
                self.say({"done": None})
            elif "get" in wish:
                self.say({"done": await self._get(wish["get"])})
            else:
                self.say({"done": await _measured(Path(wish["load"]), wish["wish"])})
        os._exit(0)

    async def _get(self, path: str) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nConnection: close\r\n\r\n".encode())
        try:
            head, _, body = (await asyncio.wait_for(reader.read(-1), 60.0)).partition(b"\r\n\r\n")
        except TimeoutError:
            return {"status": None, "body": ""}
        finally:
            writer.close()
        return {"status": int(head.split()[1]), "body": base64.b64encode(body).decode()}


class Heard:
    """What a load program reports to: its last word on how far it is."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"done": 0, "total": None}

    def progress(self, done: int, total: int, **more: object) -> None:
        """Note how far it is."""
        self.state = {"done": done, "total": total, **more}


async def _measured(program: Path, wish: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that a load program would print."""
    module = sys.modules.get("load_program")
    if module is None:
        module = types.ModuleType("load_program")
        module.__file__ = str(program)
        sys.modules["load_program"] = module
        exec(compile(program.read_bytes(), str(program), "exec"), module.__dict__)
    begun, report = time.perf_counter(), Heard()
    try:
        result = await module.measure(wish, report)
    except (ValueError, KeyError, TypeError) as error:
        return [{"event": "invalid", "kind": wish["kind"], "why": f"{type(error).__name__}: {error}"}]
    spent = time.perf_counter() - begun
    return [
        {"event": "progress", "kind": wish["kind"], "seconds": round(spent, 2), **report.state},
        {"event": "result", "kind": wish["kind"], "seconds": spent, **result},
    ]


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes virtual loops, and lets the driver run on them once the worker serves."""

    def __init__(self, clock: VirtualTime, driver: Driver) -> None:
        super().__init__()
        self._clock = clock
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A loop on the virtual clock."""
        return VirtualLoop(self._clock, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        try:
            await self._driver.run()
        except Exception as error:
            self._driver.say({"broken": repr(error)})
            os._exit(70)


def main(argv: Sequence[str]) -> None:
    """Be a worker on virtual time."""
    ground, program, control = argv[:3]
    words = list(argv[argv.index("--") + 1 :])
    clock = VirtualTime()
    port = int(words[words.index("--port") + 1])
    driver = Driver(socket.socket(fileno=int(control)), clock, port)
    commands = Path(ground) / "bin"
    commands.mkdir(exist_ok=True)
    cards.plant(commands, Path(sys.executable), Path(ground))
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != str(commands):
        # Whoever executes itself again, with what it was created with, has to find the same environment.
        os.environ["PATH"] = f"{commands}{os.pathsep}{path}"
    sys.stderr = cast(TextIO, Told(driver.say))
    clock.replace(time)
    asyncio.set_event_loop_policy(Policy(clock, driver))
    try:
        if private.read(Path(ground)).engine == "vllm":
            work_as_vllm(words, os.environ, Path(ground))
        else:
            work(words, os.environ, Path(ground), program)
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
