"""What the admin is sent, and what becomes of its answers."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.cluster.admin.session import AdminSession, Refused
from magnetar.protocol.errors import ConnectError

SEEN: list[tuple[str, str, str | None, bytes]] = []


class Admin(BaseHTTPRequestHandler):
    """Answers as its path says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        SEEN.append((self.command, self.path, self.headers.get("Content-Type"), body))
        status, answer = (404, b'{"reason": "it is missing"}') if "missing" in self.path else (200, b'{"a": 1}')
        if "broken" in self.path:
            status, answer = 500, b"<html>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, format: str, *arguments: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def session() -> Iterator[AdminSession]:
    SEEN.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Admin)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield AdminSession(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_names_are_quoted_and_bodies_are_json(session: AdminSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # of no use for the addresses of a cluster
    answer = session.ask("POST", "/{topic}/x", {"topic": "a/b %ü"}, {"force": True, "n": 3}, {"k": "ü"})
    assert answer.value() == {"a": 1}
    assert SEEN == [("POST", "/a%2Fb+%25%C3%BC/x?force=true&n=3", "application/json", json.dumps({"k": "ü"}).encode())]
    session.ask("GET", "/y", {}, {})
    assert SEEN[1] == ("GET", "/y", None, b"")


def test_a_refusal_has_the_admins_reason_and_status(session: AdminSession) -> None:
    with pytest.raises(Refused, match=r"it is missing \(404 Not Found\)") as refused:
        session.ask("GET", "/missing", {}, {})
    assert refused.value.details["status"] == 404
    with pytest.raises(Refused, match=r"<html> \(500 Internal Server Error\)"):
        session.ask("GET", "/broken", {}, {})


def test_an_admin_that_is_not_there_is_a_connect_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and not listening
        with pytest.raises(ConnectError, match="does not answer"):
            AdminSession(f"http://127.0.0.1:{unused.getsockname()[1]}").ask("GET", "/x", {}, {})
