"""HTTP through the connection: what the host reaches, as the host reaches it."""

from __future__ import annotations

import socket
import textwrap
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from agent.errors import NoAnswer
from tools.ssh import SshHost

SERVER = textwrap.dedent("""
    import sys, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            self.answer(418, body[::-1])

        def do_GET(self):
            if self.path == "/elsewhere":
                self.send_response(302)
                self.send_header("location", "/plain")
                self.send_header("content-length", "0")
                self.end_headers()
            elif self.path == "/trickle":
                self.send_response(200)
                self.send_header("content-length", "1000000")
                self.end_headers()
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            elif self.path == "/cut":
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                self.wfile.write(b"half")
                self.close_connection = True
            elif self.path == "/chunks":
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for part in (b"one", b"two" * 50000):
                    self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(part), part))
                self.wfile.write(b"0\\r\\n\\r\\n")
            else:
                self.answer(200, self.path.encode() + b" " + self.headers["host"].encode())

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers)
    if len(sys.argv) > 2:
        import ssl
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
""")


def serve(machine, unit: str, number: int, *more: str) -> None:
    """Start a server on the machine and wait until it listens."""
    machine.run(["systemd-run", f"--unit={unit}", "python3", "/srv/server.py", str(number), *more])
    until = time.monotonic() + 60
    while True:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", number)) == 0:
                return
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.fixture(scope="module")
def port(machine):
    """A server on the machine, under a name that only the machine knows: `inside`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
    hosts = (
        machine.read("/etc/hosts") if machine.run(["test", "-e", "/etc/hosts"], check=False).returncode == 0 else b""
    )
    machine.write("/etc/hosts", hosts + b"\n127.0.0.1 inside\n")
    machine.write("/srv/server.py", SERVER.encode())
    serve(machine, "answers", number)
    yield number
    machine.run(["systemctl", "stop", "answers"])
    machine.write("/etc/hosts", hosts)


@pytest.fixture(scope="module", params=["forwarded", "asked there"])
def asking(request, machine, port, way):
    """The machine over SSH; once with an sshd that forwards, and once with one that does not."""
    conf = "/etc/ssh/sshd_config.d/a-forwarding.conf"
    machine.write(conf, b"AllowTcpForwarding " + (b"yes" if request.param == "forwarded" else b"no") + b"\n")
    machine.run(["systemctl", "restart", "ssh"])
    with SshHost.connect(way("operator")) as host:
        yield host
    machine.run(["rm", conf])
    machine.run(["systemctl", "restart", "ssh"])


def test_any_status_is_an_answer(asking, port) -> None:
    """What an endpoint says is handed on with its status, good or bad, and nobody is followed elsewhere."""
    assert asking.http("POST", f"http://inside:{port}/", timeout=60, body=b"abc") == (418, b"cba")
    assert asking.http("GET", f"http://inside:{port}/elsewhere", timeout=60) == (302, b"")
    assert asking.http("GET", f"http://inside:{port}/chunks", timeout=60) == (200, b"one" + b"two" * 50000)


def test_path_and_query_and_name_arrive_as_they_are(asking, port) -> None:
    """The server sees what it would see from its own machine."""
    answer = asking.http("GET", f"http://inside:{port}/a%20b?c=d&e=%2F", timeout=60)
    assert answer == (200, f"/a%20b?c=d&e=%2F inside:{port}".encode())


def test_an_answer_that_trickles_past_the_limit_is_none(asking, port) -> None:
    """The limit holds for the whole answer."""
    before = time.monotonic()
    with pytest.raises(NoAnswer):
        asking.http("GET", f"http://inside:{port}/trickle", timeout=1)
    assert time.monotonic() - before < 30


def test_half_an_answer_is_none(asking, port) -> None:
    """A body that is cut short is no answer, whatever its status says."""
    with pytest.raises(NoAnswer):
        asking.http("GET", f"http://inside:{port}/cut", timeout=60)


@pytest.mark.parametrize(
    "url",
    ["http://inside:{free}/", "https://inside:{port}/", "nonsense", "http://[::bad/", "ftp://inside/", "http://x:y/"],
)
def test_an_endpoint_that_is_not_there_is_no_answer(asking, port, url) -> None:
    """A refused connection, a server that speaks something else and an address that is none are no answer."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer):
            asking.http("GET", url.format(port=port, free=taken.getsockname()[1]), timeout=10)


def certificate(name: str) -> bytes:
    """A key and a certificate that vouches for itself, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + made.public_bytes(Encoding.PEM)


def test_https_is_checked_as_the_machine_itself_would(machine, asking, port) -> None:
    """A certificate that the machine trusts is enough; one that it does not trust is no answer."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
    pem = certificate("inside")
    machine.write("/srv/tls.pem", pem, mode=0o600)
    serve(machine, "answers-tls", number, "/srv/tls.pem")
    try:
        with pytest.raises(NoAnswer, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            asking.http("GET", f"https://inside:{number}/", timeout=60)
        machine.write("/usr/lib/ssl/cert.pem", pem[pem.index(b"-----BEGIN CERT") :])
        assert asking.http("GET", f"https://inside:{number}/", timeout=60) == (200, f"/ inside:{number}".encode())
    finally:
        machine.run(["rm", "-f", "/usr/lib/ssl/cert.pem"])
        machine.run(["systemctl", "stop", "answers-tls"])
