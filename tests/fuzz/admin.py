"""Target: the admin's HTTP server beside a coordinator and a broker, and a client that sends any request.

Whatever comes, the connection gets answers of HTTP with a status below 500 (or 503 and 504, which ask for patience),
refusals as JSON with a reason; and the next client is served.
"""

import asyncio
import json
import logging
import re
from random import Random
from typing import Any

from aiohttp import web_app

from magnetar.actors.admin.service import AdminService
from magnetar.protocol.errors import ConflictError, SubscriptionNotFound
from magnetar.protocol.topic_figures import StorageFigures, TopicFigures
from support.fakes.topic_figures import storage_figures, topic_figures

from .coordinator import CLUSTER, SETTINGS, BrokerStub, Cluster
from .loop import MemoryTransport, run, turns
from .mutation import mutate
from .rpc import KEYS
from .target import Target, Wrong

_ANSWERS_S = 200.0
_LINGER_S = 11.0
"""aiohttp waits so long for the rest of a body that nobody reads, whatever became of the connection."""
_NEXT = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class _Broker(BrokerStub):
    """Answers what the admin asks of the owner of a topic; knows the subscription `s`."""

    async def topic_stats(self, *, topic: str) -> TopicFigures:
        return topic_figures(messages=3, bytes=300)

    async def internal_stats(self, *, topic: str) -> StorageFigures:
        return storage_figures(3)

    async def last_message_id(self, *, topic: str) -> list[int]:
        return [1, 2, -1, -1]

    async def create_subscription(self, *, topic: str, subscription: str, position: str | list[int]) -> None:
        if subscription == "s":
            raise ConflictError("it exists")
        _check_position(position)

    async def delete_subscription(self, *, topic: str, subscription: str, force: bool) -> None:
        _known(subscription)
        if type(force) is not bool:
            raise Wrong(f"a broker was asked to force {force!r}")

    async def reset_cursor(self, *, topic: str, subscription: str, position: str | int | list[int]) -> None:
        _known(subscription)
        _check_position(position)

    async def skip_all(self, *, topic: str, subscription: str) -> None:
        _known(subscription)


def _known(subscription: str) -> None:
    if subscription != "s":
        raise SubscriptionNotFound(f"there is no {subscription}")


def _check_position(position: Any) -> None:
    """What a broker takes: a word, milliseconds, or a ledger and an entry."""
    if position in ("earliest", "latest") or (type(position) is int and 0 <= position < 1 << 63):
        return
    if not isinstance(position, list) or [type(one) for one in position] != [int, int]:
        raise Wrong(f"a broker was asked for the place {position!r}")


_HEAD = re.compile(rb"HTTP/\d\.\d (\d{3}) [^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n")


def _answers(data: bytes) -> list[tuple[int, bytes]]:
    """The answers in what a server wrote: (status, body). A body's length is not looked at: that of HEAD is a lie."""
    heads = list(_HEAD.finditer(data))
    if data and (not heads or heads[0].start()):
        raise Wrong(f"not an answer of HTTP: {data[:200]!r}")
    ends = [*(head.start() for head in heads[1:]), len(data)]
    return [(int(head[1]), data[head.end() : end]) for head, end in zip(heads, ends, strict=False)]


class _Browser:
    """A client of the server: one connection."""

    def __init__(self, admin: AdminService) -> None:
        assert admin._runner is not None
        self.heard = b""
        factory: Any = admin._runner.server
        self.transport = MemoryTransport(factory(), self._hear)

    def _hear(self, data: bytes) -> None:
        self.heard += data

    async def quiet(self, admin: AdminService) -> None:
        """Return when every request under way is answered."""
        waited = 0.0
        await turns(30)
        while admin._under_way:
            if waited > _ANSWERS_S:
                raise Wrong("a request is not answered")
            waited += 0.5
            await asyncio.sleep(0.5)
        await turns(30)


async def _speak(admin: AdminService, mode: int, stream: bytes) -> None:
    browser = _Browser(admin)
    step = len(stream) or 1 if mode & 1 else 7 + mode * 3
    for start in range(0, len(stream), step):
        if browser.transport.closing:
            break
        browser.transport.feed(stream[start : start + step])
        await turns(3)
    await browser.quiet(admin)
    for status, body in _answers(browser.heard):
        if status >= 500 and status not in (501, 503, 504):
            raise Wrong(f"{status}: {body[:300]!r}")
        if status >= 400 and body.startswith(b"{") and not isinstance(json.loads(body).get("reason"), str):
            raise Wrong(f"a refusal without a reason: {body[:300]!r}")
    browser.transport.close()
    await asyncio.sleep(_LINGER_S)


async def _serve_next(admin: AdminService) -> None:
    browser = _Browser(admin)
    browser.transport.feed(_NEXT)
    await browser.quiet(admin)
    if _answers(browser.heard) != [(200, json.dumps([SETTINGS.cluster_name]).encode())]:
        raise Wrong(f"the next client got {browser.heard!r}")
    browser.transport.close()
    await turns(10)


async def _main(data: bytes) -> None:
    mode, stream = data[0] if data else 0, data[1:]
    cluster = Cluster(_Broker())
    await cluster.start()
    admin = AdminService(cluster.env, CLUSTER, KEYS, SETTINGS, "127.0.0.1", 0, cluster.locate)
    try:
        await admin.start()
        await _speak(admin, mode, stream)
        await _serve_next(admin)
        if cluster.lost:
            raise Wrong("a broker lost its session over a request")
    finally:
        await admin.close()
        await cluster.close()


# ---- Inputs ----

_PATHS = """
/admin/v2/clusters /admin/v2/clusters/C /admin/v2/brokers /admin/v2/brokers/health /admin/v2/brokers/C /metrics
/admin/v2/tenants /admin/v2/tenants/T /admin/v2/namespaces/T /admin/v2/namespaces/T/N /admin/v2/namespaces/T/N/topics
/admin/v2/persistent/T/N /admin/v2/persistent/T/N/partitioned /admin/v2/persistent/T/N/X/partitions
/admin/v2/persistent/T/N/X /admin/v2/persistent/T/N/X/stats /admin/v2/persistent/T/N/X/partitioned-stats
/admin/v2/persistent/T/N/X/internalStats /admin/v2/persistent/T/N/X/lastMessageId /admin/v2/persistent/T/N/X/unload
/admin/v2/persistent/T/N/X/subscriptions /admin/v2/persistent/T/N/X/subscription/S
/admin/v2/persistent/T/N/X/subscription/S/resetcursor /admin/v2/persistent/T/N/X/subscription/S/resetcursor/W
/admin/v2/persistent/T/N/X/subscription/S/skip_all /admin/v2/non-persistent/T/N /admin/v2/persistent/T/N/X/retention
/lookup/v2/topic/persistent/T/N/X
""".split()
_ODD_PARTS = [
    "",
    "%00",
    "%2F",
    "%ff",
    "%",
    "..",
    "%F0%9F%90%9F",
    "a b",
    "x" * 3000,
    "-partition-0",
    "%0d%0a",
    "{}",
    "*",
    "-1",
]
_PARTS = {
    "C": ["standalone", "other"],
    "T": ["public", "public", "new", "acme"],
    "N": ["default", "default", "n"],
    "X": ["t", "t", "t-partition-0", "t-partition-7", "new"],
    "S": ["s", "s", "new"],
    "W": ["0", "1700000000000", str(1 << 63), "-1", "1e3"],
}
_QUERIES = [
    "", "", "", "?force=true", "?force=maybe", "?perPartition=false", "?checkAllowAutoCreation=true", "?mode=ALL",
    "?destinationBroker=broker-1", "?destinationBroker=nobody", "?force=true&force=false", "?%ff=%00",
    "?" + "a=b&" * 300,
]  # fmt: skip
_BODIES: list[Any] = [
    None, None, 3, 0, -1, 1 << 40, 10_001, "latest", "earliest", {"partitions": 2}, {"partitions": None}, [1], {},
    True, 1.5, {"ledgerId": 1, "entryId": 2}, {"ledgerId": 1 << 64, "entryId": 0}, {"ledgerId": "1"},
    {"ledgerId": 1, "entryId": -7}, {"adminRoles": ["a"], "allowedClusters": []}, {"adminRoles": "a"},
    {"adminRoles": [None]}, {"retention_policies": {}},
]  # fmt: skip
_ODD_BODIES = [b"{", b"nul", b"\xff\xfe", b"[" * 40_000, b'"\\ud800"', b"1e999", b"NaN", b"9" * 5000, b" ", b"{}" * 3]


_ODD_HOSTS = [
    "Host: a", "Host:", "X: y", "Host: [::1", "Host: [::1]:x", "Host: localhost\r\nHost: a", "Host: \xff", "Host: :",
    "Host: 1.2.3.4.5",
]  # fmt: skip
_PAGES = [
    "Origin: null", "Origin: http://localhost", "Origin: http://[::1", "Origin: http://a.example", "Origin:",
    "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin",
    "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate",
]  # fmt: skip


def make_request(random: Random) -> bytes:
    path = "/".join(
        random.choice(_ODD_PARTS if random.random() < 0.06 else _PARTS.get(part, [part]))
        for part in random.choice(_PATHS).split("/")[1:]
    )
    method = random.choice(["GET", "GET", "PUT", "PUT", "POST", "DELETE"])
    if random.random() < 0.04:
        method = random.choice(["HEAD", "OPTIONS", "PATCH", "BREW", ""])
    odd = random.random() < 0.1
    body = random.choice(_ODD_BODIES) if odd else json.dumps(random.choice(_BODIES)).encode()
    headers = [f"Content-Length: {len(body) + random.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 5))}"]
    if body == b"null":
        body, headers = b"", [random.choice(["", "Content-Length: 0"])]
    if random.random() < 0.05:
        headers.append(
            random.choice(
                [
                    "Transfer-Encoding: chunked",
                    "Content-Encoding: gzip",
                    "Expect: 100-continue",
                    "Content-Type: a; charset=x",
                ]
            )
        )
    if random.random() < 0.9:
        headers.append("Content-Type: application/json")
    if random.random() < 0.1:
        headers.append(random.choice(_PAGES))
    host = random.choice(_ODD_HOSTS) if random.random() < 0.1 else "Host: localhost"
    head = f"{method} /{path}{random.choice(_QUERIES)} HTTP/1.{random.choice('1111111110')}\r\n{host}\r\n"
    return (head + "".join(f"{line}\r\n" for line in headers if line) + "\r\n").encode() + body


def make(random: Random) -> bytes:
    mode = random.randrange(256) | (1 if random.random() < 0.8 else 0)
    stream = b"".join(make_request(random) for _ in range(random.randint(1, 8)))
    return bytes([mode]) + (mutate(stream, random) if random.random() < 0.2 else stream)


def take(data: bytes) -> None:
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # it tells of malformed requests with a traceback
    run(_main(data))
    web_app._cached_build_middleware.cache_clear()  # it keeps the last thousand applications, each input's own


TARGETS = [Target("admin", make, take, share=3)]
