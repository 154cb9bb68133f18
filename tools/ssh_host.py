"""A host at the other end of a connection: every verb is one wish for `on_host/launcher.py`, or an HTTP request."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from agent.errors import HostError, HostUnfit, HostUnreachable, NoAnswer, Refused
from tools.host import Completed, HttpAnswer
from tools.ssh_lines import SshLines
from tools.ssh_target import SshTarget
from tools.ssh_wire import Channel, Frames, ask_http, order, send

Answer = TypeVar("Answer")
CONNECT_SECONDS = 15.0
"""Limit for each part of getting in: the connection, the greeting, each key."""
ALIVE_SECONDS = 5
"""Something goes over the connection at least this often."""
DEAD_SECONDS = 25
"""A connection on which nothing is acknowledged for so long is dead; a stream whose agent says nothing for so long ends
on the host too."""
SLACK_SECONDS = 15.0
"""How much later than on the host a command's limit is over here: the way there and back."""
ROOM_SECONDS = 3.0
"""How long to ask for one more session before it is said that there is none."""
READ_SECONDS = 60.0
"""A file that is read may pause for so long."""
GRACE_SECONDS = 10.0
"""How long a stream's command may take to end once it was told to; the launcher kills it after two."""


class TurnedAway(Exception):
    """The other end opens no conversation of this kind, and says so."""

    def __init__(self, says: str, *, forbidden: bool) -> None:
        super().__init__(says)
        self.forbidden = forbidden
        """Whether that is its rule, rather than that nobody listens at the address."""


class Conversation(Channel, Protocol):
    """A channel with a command at its end, or an address."""

    def hang_up(self) -> None:
        """Say that nothing more will be said."""

    def ended(self, limit: float) -> int | None:
        """The command's own status, waited for so many seconds; None: it never came."""

    def complained(self, limit: float) -> str:
        """Something from its standard error, waited for so many seconds."""

    def close(self) -> None:
        """End it."""


class Link(Protocol):
    """A connection that stands."""

    @property
    def alive(self) -> bool:
        """Whether nothing is known against it."""

    def begin(self, line: str, limit: float) -> Conversation:
        """Give the login's shell one line.

        Raises:
            TurnedAway: no further session is opened.
            OSError: the connection is gone.
        """

    def forward(self, address: tuple[str, int], limit: float) -> Conversation:
        """Reach an address as the other end does.

        Raises:
            TurnedAway: nobody listens there, or nothing is forwarded.
            OSError: the connection is gone.
        """

    def close(self) -> None:
        """End it."""


class Reply(NamedTuple):
    """How a wish ended."""

    end: Mapping[str, Any]
    """The launcher's last word."""
    output: bytes
    """What was printed, or read."""
    complaints: bytes
    """What was complained."""


class LinkedHost:
    """A machine at the other end of a connection.

    A connection that is found dead before anything of a command was sent is made anew, once, and `tell` hears of it. A
    command that was under way is never sent again: that is `NoAnswer`. Only a file that was being read, and a `GET`,
    are asked for a second time.

    Args:
        target: The machine.
        login: Makes a connection to it; raises `Refused` where none comes about.
        clock: Seconds that only go forward.
        tell: Hears of each connection that had to be made again.

    Raises:
        Refused: no connection comes about, or the machine lacks what we need.
    """

    def __init__(
        self,
        target: SshTarget,
        login: Callable[[], Link],
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._make = login
        self._clock = clock
        self._tell = tell
        self._turn = threading.Lock()
        self._machine: str | None = None
        self._directory = ""
        self._link: Link | None = self._login()

    def close(self) -> None:
        """End the connection; what runs in streams ends with it."""
        with self._turn:
            self._drop()

    def __enter__(self) -> LinkedHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._target.name

    @property
    def python(self) -> str:
        """The interpreter for shipped files."""
        return self._target.python

    @property
    def directory(self) -> str:
        """Prudent's own directory there."""
        return self._directory

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command to its end, in a session of its own.

        The host itself watches the limit and kills the command with its children, so that this also holds when the
        connection breaks; until then such a command goes on, because a change that has begun is not cut off half way.

        Raises:
            NoAnswer: it did not end in time, or the connection broke; nobody knows whether it was done.
            HostError: it could not be started.
        """
        wish = {"do": "run", "argv": list(argv), "environ": dict(environ or {}), "timeout": timeout}
        reply = self._carry(argv, wish, stdin, limit=timeout)
        if reply.end["late"]:
            tail = reply.complaints[-500:].decode(errors="replace")
            raise NoAnswer(self.name, argv, None, f"no end within {timeout:g} s. {tail}")
        return Completed(int(reply.end["status"]), reply.output, reply.complaints)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[SshLines]:
        """Start a command and hand out its lines; leaving the block, or losing the connection, ends it with its group.

        Raises:
            HostError: it could not be started.
            NoAnswer: the connection broke before it was.
        """
        wish = {"do": "stream", "argv": list(argv), "environ": {}, "dead": DEAD_SECONDS}
        with self._conversation(argv, wish, stdin, SLACK_SECONDS) as (channel, frames):
            self._next(argv, channel, frames, self._clock() + SLACK_SECONDS)
            lines = SshLines(self.name, argv, frames, silence, self._clock)
            over = threading.Event()
            threading.Thread(target=_say_so, args=(channel, over), daemon=True).start()
            try:
                yield lines
            finally:
                over.set()
                channel.hang_up()
                lines.finish(self._clock() + GRACE_SECONDS)

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes, or its last `tail` bytes.

        Raises:
            HostError: it is not there or not readable; `said` is the system's own word.
            NoAnswer: the connection broke, twice.
        """
        command = ("read", path)
        wish = {"do": "read", "path": path, "tail": tail}
        return self._question(lambda: self._carry(command, wish, b"", limit=READ_SECONDS, each=True).output)

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint as the host itself reaches it, through the same connection.

        Where sshd forwards nothing, and for https, the host's own Python asks.

        Raises:
            NoAnswer: nobody listens there, or no complete answer came in time.
        """
        if method == "GET":
            return self._question(lambda: self._http(method, url, timeout, body))
        return self._http(method, url, timeout, body)

    def ship(self, name: str, content: bytes) -> str:
        """Put one of Prudent's own files into its directory there; return the path, which holds the hash.

        Raises:
            HostError: there is no room, it may not be written, or the directory is not ours alone.
            NoAnswer: the connection broke.
        """
        below = ["shipped", hashlib.sha256(content).hexdigest()[:16], PurePosixPath(name).name]
        wish = {"do": "ship", "directory": self._directory, "below": below}
        reply = self._carry(("ship", name), wish, content, limit=READ_SECONDS)
        return str(reply.end["path"])

    # ------------------------------------------------------------------------------------------------ one wish

    def _question(self, ask: Callable[[], Answer]) -> Answer:
        """Ask something that changes nothing; once more where the connection broke meanwhile."""
        try:
            return ask()
        except NoAnswer:
            link = self._link
            if link is not None and link.alive:
                raise
            return ask()

    def _carry(
        self, command: Sequence[str], wish: Mapping[str, Any], content: bytes, *, limit: float, each: bool = False
    ) -> Reply:
        """Have one wish carried out; the limit is for all of it, or for each part that comes."""
        output: list[bytes] = []
        complaints: list[bytes] = []
        with self._conversation(command, wish, content, limit) as (channel, frames):
            deadline = self._clock() + limit + SLACK_SECONDS
            while True:
                kind, part = self._next(command, channel, frames, deadline)
                if kind == "S":
                    return Reply(json.loads(part), b"".join(output), b"".join(complaints))
                (output if kind == "O" else complaints).append(part)
                if each:
                    deadline = self._clock() + limit + SLACK_SECONDS

    @contextlib.contextmanager
    def _conversation(
        self,
        command: Sequence[str],
        wish: Mapping[str, Any],
        content: bytes,
        limit: float,
        link: Link | None = None,
    ) -> Iterator[tuple[Conversation, Frames]]:
        """Start the launcher and hand it a wish."""
        become = ("sudo", "-n", "--") if self._target.become == "sudo" else ()
        made = order(self._target.python, wish, content, mark=secrets.token_hex(16), become=become)
        channel = self._session(command, made.line, link)
        try:
            try:
                send(channel, made.sent, self._clock() + limit + SLACK_SECONDS, self._clock)
            except TimeoutError as error:
                raise NoAnswer(self.name, command, None, "it could not be sent in time") from error
            except OSError:
                # One that ended early has said why, which is read next.
                pass
            yield channel, Frames(channel, made.mark, self._clock)
        finally:
            channel.close()

    def _session(self, command: Sequence[str], line: str, link: Link | None) -> Conversation:
        """A conversation with a shell.

        Sshd counts a session until its last process has ended, which is a little later than we have its answer.

        Raises:
            NoAnswer: there is no connection.
            HostError: the host opens no further session.
        """
        deadline = self._clock() + ROOM_SECONDS
        while True:
            try:
                return self._open(command, lambda link: link.begin(line, CONNECT_SECONDS), link)
            except TurnedAway as turned:
                if self._clock() >= deadline:
                    said = f"sshd opens no further session (see its MaxSessions): {turned}"
                    raise HostError(self.name, command, None, said) from turned
            threading.Event().wait(0.1)

    def _next(
        self, command: Sequence[str], channel: Conversation, frames: Frames, deadline: float
    ) -> tuple[str, bytes]:
        """The launcher's next word.

        Raises:
            NoAnswer: it did not come, or the connection broke.
            HostError: the machine could not do it, and says so.
        """
        try:
            kind, part = frames.next(deadline)
        except TimeoutError as error:
            raise NoAnswer(self.name, command, None, "no answer in time") from error
        except EOFError as error:
            raise self._silent(command, channel, frames) from error
        if kind == "S":
            end = json.loads(part)
            if "error" in end:
                raise HostError(self.name, command, end["errno"], end["error"])
        return kind, part

    def _silent(self, command: Sequence[str], channel: Conversation, frames: Frames) -> HostError:
        """Why a launcher ended without its last word."""
        status = channel.ended(CONNECT_SECONDS)
        if frames.began or status is None:
            return NoAnswer(self.name, command, None, "the connection broke before it said how it ended")
        said = channel.complained(CONNECT_SECONDS) or frames.noise or "the machine says nothing"
        return HostError(self.name, command, status, f"it was not started: {said}")

    def _http(self, method: str, url: str, timeout: float, body: bytes) -> HttpAnswer:
        command = (method, url)
        try:
            parts = urlsplit(url)
            spot = (parts.hostname or "", parts.port or 80)
        except ValueError as error:
            raise NoAnswer(self.name, command, None, str(error)) from error
        if parts.scheme == "https":
            return self._http_there(method, url, timeout, body)
        if parts.scheme != "http" or not spot[0]:
            raise NoAnswer(self.name, command, None, "this is no address of an HTTP endpoint")
        deadline = self._clock() + timeout
        try:
            channel = self._open(command, lambda link: link.forward(spot, timeout))
        except TurnedAway as turned:
            if turned.forbidden:
                return self._http_there(method, url, timeout, body)
            raise NoAnswer(self.name, command, None, f"nobody listens there: {turned}") from turned
        try:
            return ask_http(channel, method, url, body, deadline=deadline, clock=self._clock)
        except TimeoutError as error:
            raise NoAnswer(self.name, command, None, f"no complete answer within {timeout:g} s") from error
        except (OSError, EOFError, http.client.HTTPException, ValueError) as error:
            raise NoAnswer(self.name, command, None, str(error) or type(error).__name__) from error
        finally:
            channel.close()

    def _http_there(self, method: str, url: str, timeout: float, body: bytes) -> HttpAnswer:
        command = (method, url)
        wish = {"do": "http", "method": method, "url": url, "timeout": timeout}
        try:
            reply = self._carry(command, wish, body, limit=timeout)
        except NoAnswer:
            raise
        except HostError as error:
            raise NoAnswer(self.name, command, error.status, error.said) from error
        return HttpAnswer(int(reply.end["code"]), reply.output)

    # ------------------------------------------------------------------------------------------- the connection

    def _open(
        self, command: Sequence[str], opening: Callable[[Link], Conversation], link: Link | None = None
    ) -> Conversation:
        """A new conversation.

        Nothing of a wish has been sent before this returns, so a connection that turns out to be dead is made again;
        not one that is handed in, because it is only just being made.

        Raises:
            NoAnswer: there is no connection.
            TurnedAway: see `Link`.
        """
        tries = 2 if link is None else 1
        with self._turn if link is None else contextlib.nullcontext():
            for _ in range(tries):
                try:
                    return opening(link or self._living(command))
                except OSError as error:
                    broken = error
                    self._drop()
        raise NoAnswer(self.name, command, None, f"nothing was sent: the connection breaks at once: {broken}")

    def _living(self, command: Sequence[str]) -> Link:
        """The connection, made again if it is dead.

        Raises:
            NoAnswer: it cannot be made again.
        """
        if self._link is not None and self._link.alive:
            return self._link
        self._drop()
        try:
            self._link = self._login()
        except Refused as refusal:
            raise NoAnswer(self.name, command, None, f"nothing was sent: {refusal}") from refusal
        self._tell(f"{self.name}: the connection was lost and has been made again")
        return self._link

    def _login(self) -> Link:
        """Get in and greet.

        Raises:
            Refused: it is not to be reached, or not what is needed.
        """
        link = self._make()
        try:
            self._recognise(self._greet(link))
        except BaseException:
            link.close()
            raise
        return link

    def _recognise(self, met: Mapping[str, Any]) -> None:
        """Take a machine for the one it was before, or for the one to be known from now on.

        Raises:
            HostUnfit: it is another one.
        """
        if self._machine not in {None, met["machine"]}:
            raise HostUnfit(
                f"{self.name}: another machine answers than before, by its /etc/machine-id.",
                "See what the address leads to; nothing is done on a machine that was not looked at.",
            )
        self._machine = met["machine"]
        self._directory = self._target.directory or f"{met['home']}/.prudent/host"

    def _greet(self, link: Link) -> Mapping[str, Any]:
        """Start the launcher once, to see who we are there and whether it can be started.

        Raises:
            HostUnfit: it cannot.
            HostUnreachable: the connection broke.
        """
        command = ("greet",)
        try:
            with self._conversation(command, {"do": "greet"}, b"", CONNECT_SECONDS, link) as (channel, frames):
                _, said = self._next(command, channel, frames, self._clock() + CONNECT_SECONDS)
        except NoAnswer as error:
            raise HostUnreachable(
                f"{self.name}: {error.said}.", "Try a command there by hand, with the same login."
            ) from error
        except HostError as error:
            sudo = " and that the login may `sudo -n` without a password" if self._target.become else ""
            raise HostUnfit(
                f"{self.name}: {self.python!r} does not start there: {error.said}.",
                f'See that the host has Python 3.10 or newer, named with python = "..."{sudo}.',
            ) from error
        met: Mapping[str, Any] = json.loads(said)
        if tuple(met["python"]) < (3, 10):
            raise HostUnfit(
                f"{self.name}: {self.python!r} there is Python {met['python'][0]}.{met['python'][1]}.",
                'Prudent needs Python 3.10 or newer; name one with python = "...".',
            )
        return met

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _say_so(channel: Conversation, over: threading.Event) -> None:
    """Let the host know, every few seconds, that somebody still wants a stream."""
    with contextlib.suppress(OSError):
        while not over.wait(ALIVE_SECONDS):
            channel.sendall(b".")
