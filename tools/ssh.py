"""SSH: connections to a worker's machine. The only file that knows paramiko."""

from __future__ import annotations

import base64
import contextlib
import logging
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import paramiko

from agent.errors import BadSettings, ChangedHostKey, HostUnreachable, LoginRefused, Refused
from tools.ssh_host import ALIVE_SECONDS, CONNECT_SECONDS, DEAD_SECONDS, LinkedHost, TurnedAway
from tools.ssh_known_hosts import fingerprint, known, verify
from tools.ssh_route import Hop, Lookup, before, config_path, lines_of, route
from tools.ssh_target import SshTarget


class SshHost(LinkedHost):
    """A machine reached by SSH; made with `connect`."""

    @classmethod
    def connect(
        cls,
        target: SshTarget,
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> SshHost:
        """Get in, and see that the machine has what we need.

        Raises:
            HostUnreachable: no connection comes about.
            UnknownHostKey: nobody has written its key down.
            ChangedHostKey: it has another key than the one that was written down, or a revoked one.
            LoginRefused: it does not let us in.
            HostUnfit: it has no Python 3.10, or no `sudo` without a password.
            BadSettings: the settings or ssh_config say something that cannot be.
        """
        quiet = logging.getLogger("paramiko")
        if not quiet.handlers:
            # Without any handler Python prints the library's tracebacks on the operator's terminal.
            quiet.addHandler(logging.NullHandler())
        return cls(target, lambda: _Link(way_to(target)), clock=clock, tell=tell)


class _Link:
    """A connection through all hops.

    Raises:
        Refused: see `SshHost.connect`.
    """

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._transports: list[paramiko.Transport] = []
        self._command: subprocess.Popen[bytes] | None = None
        try:
            for hop in hops:
                with _told(hop):
                    self._transports.append(self._step(hop))
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether nothing is known against it."""
        return bool(self._transports) and all(transport.is_active() for transport in self._transports)

    def begin(self, line: str, limit: float) -> _Conversation:
        """Give the login's shell one line; nothing of it is done twice, because it only waits for an order."""
        with _ours(), self._bounded(limit):
            channel = self._transports[-1].open_session(timeout=limit)
            channel.exec_command(line)
            return _Conversation(channel)

    def forward(self, address: tuple[str, int], limit: float) -> _Conversation:
        """Reach an address as the other end does."""
        with _ours():
            return _Conversation(self._way(address, limit))

    def close(self) -> None:
        """End it, the last hop first."""
        for transport in reversed(self._transports):
            transport.close()
        if self._command is not None:
            self._command.kill()
            self._command.wait()

    def _way(self, address: tuple[str, int], limit: float) -> paramiko.Channel:
        return self._transports[-1].open_channel("direct-tcpip", address, ("127.0.0.1", 0), timeout=limit)

    def _step(self, hop: Hop) -> paramiko.Transport:
        wire: Any
        if self._transports:
            wire = self._way((hop.address, hop.port), CONNECT_SECONDS)
        elif hop.command is not None:
            wire = self._through(hop.command)
        else:
            wire = socket.create_connection((hop.address, hop.port), CONNECT_SECONDS)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
        transport = paramiko.Transport(wire)
        try:
            transport.banner_timeout = transport.auth_timeout = CONNECT_SECONDS
            facts = known((hop.called, hop.address), hop.known_hosts)
            options = transport.get_security_options()
            options.key_types = _known_first(options.key_types, facts.kinds)
            transport.start_client(timeout=CONNECT_SECONDS)
            key = transport.get_remote_server_key()
            file = hop.known_hosts[0]
            verify(facts, key.get_name(), key.asbytes(), shown=hop.shown, called=hop.called, file=file)
            _let_in(transport, hop)
            transport.set_keepalive(ALIVE_SECONDS)
        except BaseException:
            transport.close()
            raise
        return transport

    def _through(self, command: str) -> socket.socket:
        """A socket at whose other end a command stands for the way; the library's own one spins when that ends."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._command = subprocess.Popen(
                    shlex.split(command),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return ours

    @contextlib.contextmanager
    def _bounded(self, limit: float) -> Iterator[None]:
        """Close the connection where a block, which the library gives no limit, takes too long."""
        timer = threading.Timer(limit, self.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class _Conversation:
    """A channel of the library."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def settimeout(self, timeout: float | None) -> None:
        """Limit what follows, in seconds."""
        self._channel.settimeout(timeout)

    def sendall(self, s: bytes) -> None:
        """Send all of it."""
        self._channel.sendall(s)

    def recv(self, nbytes: int) -> bytes:
        """Receive something; nothing: the other end is done."""
        return self._channel.recv(nbytes)

    def hang_up(self) -> None:
        """Say that nothing more will be said."""
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self._channel.shutdown_write()

    def ended(self, limit: float) -> int | None:
        """The command's own status."""
        if not self._channel.status_event.wait(limit):
            return None
        status = self._channel.recv_exit_status()
        return None if status == -1 else status

    def complained(self, limit: float) -> str:
        """Something from its standard error."""
        self._channel.settimeout(limit)
        with contextlib.suppress(TimeoutError):
            return self._channel.recv_stderr(4096).decode(errors="replace").strip()
        return ""

    def close(self) -> None:
        """End it."""
        self._channel.close()


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Turn what the library raises on a connection that stands into what `Link` promises."""
    try:
        yield
    except paramiko.ChannelException as error:
        # RFC 4254, 5.1: 1 is "administratively prohibited".
        raise TurnedAway(error.text, forbidden=error.code == 1) from error
    except (paramiko.SSHException, EOFError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error


def _known_first(offered: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Key types in the order in which to ask for them: a machine is asked for a key that is known."""
    wanted = [name for kind in kinds for name in (("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,))]
    first = [name for name in wanted if name in offered]
    return [*first, *(name for name in offered if name not in first)]


def _let_in(transport: paramiko.Transport, hop: Hop) -> None:
    """Log in with the first key that is taken.

    Raises:
        LoginRefused: none is.
    """
    tried: list[str] = []
    with contextlib.closing(paramiko.Agent()) as agent:
        for said, key in _keys(hop, agent.get_keys(), tried):
            tried.append(said)
            try:
                more = transport.auth_publickey(hop.user, key)
            except paramiko.BadAuthenticationType as error:
                raise LoginRefused(
                    f"{hop.shown} takes no keys, only {', '.join(error.allowed_types)}.",
                    "Let its sshd take keys (PubkeyAuthentication yes).",
                ) from error
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    break
                continue
            except (paramiko.SSHException, EOFError):
                break
            if more:
                raise LoginRefused(
                    f"{hop.shown} wants more than a key: {', '.join(more)}.", "Use a login that a key is enough for."
                )
            return
    if not transport.is_active():
        raise LoginRefused(
            f"{hop.shown} hung up after {', '.join(tried) or 'nothing'}.",
            'It may be that too many keys were tried: name the right one with identity = "...", or IdentitiesOnly yes.',
        )
    raise LoginRefused(
        f"{hop.shown} lets nobody in with {', '.join(tried) or 'no key at all'}.",
        "Add your key to the login's authorized_keys there, load it into the agent with ssh-add, or name it with "
        'identity = "...".',
    )


def _keys(hop: Hop, held: Sequence[paramiko.AgentKey], tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys to offer, the named ones first; one that cannot be used is noted among those that were tried."""
    offered = set()
    for path in hop.keys:
        file = Path(path).expanduser()
        mine = next((key for key in held if key.asbytes() == _public(file)), None)
        if mine is not None:
            offered.add(mine.asbytes())
            yield f"{file} (from the agent)", mine
        elif file.exists():
            try:
                key = paramiko.PKey.from_path(file)
            except (paramiko.PasswordRequiredException, TypeError):
                tried.append(f"{file} (not used: it has a passphrase, and the agent does not hold it)")
            except (paramiko.SSHException, paramiko.pkey.UnknownKeyType, ValueError, OSError) as error:
                tried.append(f"{file} (not used: {error})")
            else:
                offered.add(key.asbytes())
                yield str(file), key
    if not hop.named_keys_only:
        for key in held:
            if key.asbytes() not in offered:
                yield f"the agent's {fingerprint(key.asbytes())}", key


def _public(file: Path) -> bytes | None:
    """The public half that lies beside a private key."""
    try:
        return base64.b64decode(Path(f"{file}.pub").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None


MEANINGS: Mapping[type[Exception], tuple[type[Refused], str]] = {
    paramiko.BadHostKeyException: (ChangedHostKey, "See what the address leads to."),
    paramiko.AuthenticationException: (LoginRefused, "Check the login and its authorized_keys."),
    paramiko.ChannelException: (HostUnreachable, "See that the machine before it lets connections through."),
    paramiko.ssh_exception.IncompatiblePeer: (
        HostUnreachable,
        "Its sshd is too old or too new; update one of the two.",
    ),
    paramiko.ssh_exception.ProxyCommandFailure: (HostUnreachable, "Try the ProxyCommand by hand."),
    paramiko.ssh_exception.CouldNotCanonicalize: (BadSettings, "Correct CanonicalDomains in ssh_config."),
    paramiko.ssh_exception.ConfigParseError: (BadSettings, "Correct the line in ssh_config."),
    paramiko.pkey.UnknownKeyType: (HostUnreachable, "Use a key of a common type, such as ed25519, on both sides."),
    paramiko.SSHException: (HostUnreachable, "Try ssh there by hand, with the same login."),
    EOFError: (HostUnreachable, "Try ssh there by hand, with the same login."),
    OSError: (HostUnreachable, "Check address, port and network, and that its sshd runs."),
}
"""What the library's exceptions mean while a connection is made, the special ones first."""


@contextlib.contextmanager
def _told(hop: Hop) -> Iterator[None]:
    """Turn the library's exceptions into ours."""
    try:
        yield
    except Refused:
        raise
    except tuple(MEANINGS) as error:
        meant, remedy = next(meaning for kind, meaning in MEANINGS.items() if isinstance(error, kind))
        said = str(error) or type(error).__name__
        raise meant(f"{hop.shown}: {said}.", remedy) from error


def way_to(target: SshTarget) -> tuple[Hop, ...]:
    """The machines on the way to a target, by the settings and by ssh_config, the target last.

    Raises:
        BadSettings: what they say cannot be used.
    """
    return route(target, _lookup(target))


def _lookup(target: SshTarget) -> Lookup:
    """What the ssh_config of a target says.

    Raises:
        BadSettings: it is not there, or cannot be read.
    """
    path = config_path(target)
    try:
        lines = list(lines_of(path)) if path is not None else []
        paramiko.SSHConfig.from_text("\n".join(lines))
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise BadSettings(f"{path}: {error}.", 'Correct it, or name another file with config = "...".') from error

    def look(step: SshTarget) -> Mapping[str, Any]:
        try:
            config = paramiko.SSHConfig.from_text("\n".join([*before(step), *lines]))
            return config.lookup(step.address or step.name)
        except (paramiko.SSHException, ImportError, KeyError) as error:
            raise ValueError(str(error)) from error

    return look
