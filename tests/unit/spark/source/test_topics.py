"""The topics of a pattern, as the admin HTTP lists them."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from magnetar.protocol.errors import ClusterError, InvalidConfiguration
from magnetar.spark.source.options import read_options
from magnetar.spark.source.topics import topics_of

TOPICS = [f"persistent://public/default/flights-{number:05}" for number in range(5_000)]


class TopicsOverHttp(BaseHTTPRequestHandler):
    """Lists topics of `public/default`; of another namespace it knows nothing."""

    def do_GET(self) -> None:
        known = self.path == "/admin/v2/namespaces/public/default/topics?mode=PERSISTENT"
        body = json.dumps([f"{TOPICS[0]}-partition-{index}" for index in range(3)] + TOPICS[1:]).encode()
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(body if known else b"Namespace does not exist")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing on standard error."""


@pytest.fixture(scope="module")
def admin_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TopicsOverHttp) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def found(admin_url: str, pattern: str) -> list[str]:
    return asyncio.run(topics_of(read_options({"admin.url": admin_url, "topicsPattern": pattern})))


@pytest.mark.parametrize(
    "pattern", ["flights-.*", "public/default/flights-.*", "persistent://public/default/flights-.*"]
)
def test_a_namespace_of_many_topics_is_listed_whole(admin_url: str, pattern: str) -> None:
    assert found(admin_url, pattern) == TOPICS


def test_a_partitioned_topic_counts_once(admin_url: str) -> None:
    assert found(admin_url, "flights-00000") == TOPICS[:1]


def test_what_cannot_be_listed_is_an_error_with_the_reason(admin_url: str) -> None:
    with pytest.raises(ClusterError, match="status 404: Namespace does not exist"):
        found(admin_url, "public/other/.*")
    for pattern in ("default/flights", "public//x", "(flights"):
        with pytest.raises(InvalidConfiguration, match="topicsPattern"):
            found(admin_url, pattern)
