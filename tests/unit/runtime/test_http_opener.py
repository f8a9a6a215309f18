"""Requests to an admin: what is never done with a credential."""

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from magnetar.runtime.http_opener import direct_opener
from magnetar.runtime.tls_contexts import SYSTEM_TLS

ASKED: list[str] = []


class Elsewhere(BaseHTTPRequestHandler):
    """Sends everybody on to another place of its own."""

    def do_GET(self) -> None:
        ASKED.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    ASKED.clear()
    with HTTPServer(("127.0.0.1", 0), Elsewhere) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


def test_a_redirect_is_not_followed_because_it_would_take_the_credential_along(server: str) -> None:
    request = urllib.request.Request(f"{server}/admin", headers={"Authorization": "Bearer secret"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        direct_opener(server, SYSTEM_TLS).open(request)
    with refused.value as error:
        assert error.code == 302
    assert ASKED == ["/admin"]
