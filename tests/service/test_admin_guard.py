"""Which requests the admin HTTP refuses because a web page may have made a browser send them."""

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.actors.admin.service import AdminService
from support.servers.coordination import CLUSTER, FAST, KEYS, coordination

PARTITIONS = "/admin/v2/persistent/public/default/t/partitions"
JSON = "application/json"


class Browser:
    """Sends requests with exactly the headers given; answers (status, reason)."""

    def __init__(self, admin: AdminService) -> None:
        self.admin = admin

    async def __call__(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(*self.admin.address)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", "Connection: close", *(f"{name}: {names[name]}" for name in names)]
        if body and "Transfer_Encoding" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status = int(head.split()[1])
        return status, json.loads(content)["reason"] if content.startswith(b"{") and status >= 400 else ""

    async def partitions(self) -> int:
        """Partitions of the topic `t`, 0 when it does not exist."""
        status, _ = await self("GET", PARTITIONS, Host="localhost")
        return 0 if status == 404 else 1


@contextlib.asynccontextmanager
async def admin_with(allowed: str = "") -> AsyncIterator[Browser]:
    settings = dataclasses.replace(FAST, web_service_allowed_hosts=allowed)
    async with coordination() as cluster:
        admin = AdminService(
            cluster.env, CLUSTER, KEYS, settings, "127.0.0.1", 0, cluster.locate, advertised_host="admin.internal"
        )
        await admin.start()
        try:
            yield Browser(admin)
        finally:
            await admin.close()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with admin_with() as found:
        yield found


async def test_a_write_under_a_strangers_host_name_answers_421_and_changes_nothing(browser: Browser) -> None:
    for host in ("rebound.example", "rebound.example:8080", "localhost.rebound.example", "127.0.0.1.rebound.example"):
        status, reason = await browser("PUT", PARTITIONS, "3", Host=host, Content_Type=JSON)
        assert status == 421 and host.partition(":")[0] in reason and "webServiceAllowedHosts" in reason
        assert (await browser("GET", "/admin/v2/clusters", Host=host))[0] == 421
    assert await browser.partitions() == 0


async def test_addresses_localhost_and_the_admins_own_names_are_answered(browser: Browser) -> None:
    own = ("127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "[::1]", "localhost", "LOCALHOST:1", "x.localhost", "localhost.")
    for host in (*own, "admin.internal:8080", socket.gethostname()):
        assert (await browser("GET", "/admin/v2/clusters", Host=host))[0] == 200, host


@pytest.mark.parametrize(
    "allowed, host, status",
    [
        ("pulsar.example, Other.Example", "other.example:80", 200),
        ("pulsar.example", "other.example", 421),
        ("*", "other.example", 200),
        ("*", "", 200),
    ],
)
async def test_further_host_names_are_a_setting(allowed: str, host: str, status: int) -> None:
    async with admin_with(allowed) as browser:
        assert (await browser("GET", "/admin/v2/clusters", Host=host))[0] == status


async def test_two_host_headers_are_refused(browser: Browser) -> None:
    assert (await browser("GET", "/admin/v2/clusters", Host="localhost\r\nHost: rebound.example"))[0] == 400


FOREIGN: list[Callable[[str], dict[str, str]]] = [
    lambda host: {"Origin": "http://rebound.example"},
    lambda host: {"Origin": "null"},
    lambda host: {"Origin": f"http://{host}0"},  # another port is another origin
    lambda host: {"Origin": f"file://{host}"},
    lambda host: {"Origin": "http://[::1"},
    lambda host: {"Origin": f"http://{host}\r\nOrigin: http://rebound.example"},
    lambda host: {"Sec_Fetch_Site": "cross-site"},
    lambda host: {"Sec_Fetch_Site": "same-site", "Origin": f"http://{host}"},
    lambda host: {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
]


@pytest.mark.parametrize("foreign", FOREIGN)
async def test_a_write_of_a_foreign_page_answers_403_with_or_without_a_body(
    browser: Browser, foreign: Callable[[str], dict[str, str]]
) -> None:
    host = f"127.0.0.1:{browser.admin.address[1]}"
    headers = {"Host": host, **foreign(host)}
    skip_all = "/admin/v2/persistent/public/default/t/subscription/s/skip_all"
    for method, path, body in (("PUT", PARTITIONS, "3"), ("POST", skip_all, ""), ("DELETE", PARTITIONS, "")):
        status, reason = await browser(method, path, body, Content_Type=JSON, **headers)
        assert status == 403 and "may not use the admin" in reason, method
    assert await browser.partitions() == 0


async def test_a_page_of_the_admins_own_origin_may_write(browser: Browser) -> None:
    host = f"127.0.0.1:{browser.admin.address[1]}"
    own = {"Host": host, "Origin": f"http://{host}", "Sec_Fetch_Site": "same-origin"}
    assert (await browser("PUT", PARTITIONS, "3", Content_Type=JSON, **own))[0] == 204
    assert await browser.partitions() == 1


async def test_a_link_on_a_foreign_page_may_be_followed_and_a_script_may_not_read(browser: Browser) -> None:
    link = {"Host": "localhost", "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert (await browser("GET", "/metrics", **link))[0] == 200
    link["Sec_Fetch_Mode"] = "no-cors"
    assert (await browser("GET", "/metrics", **link))[0] == 403


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"]
)
async def test_a_body_that_is_not_called_json_answers_415_and_changes_nothing(
    browser: Browser, content_type: str
) -> None:
    headers = {"Host": "localhost"} | ({"Content_Type": content_type} if content_type else {})
    status, reason = await browser("PUT", PARTITIONS, "3", **headers)
    assert status == 415 and "Content-Type: application/json" in reason
    status, _ = await browser("PUT", PARTITIONS, "1\r\n3\r\n0\r\n\r\n", Transfer_Encoding="chunked", **headers)
    assert status == 415
    assert await browser.partitions() == 0


async def test_what_pulsar_admin_and_curl_send_is_taken(browser: Browser) -> None:
    """Seen from pulsar-admin 4.2.4: a type also without a body, and one of its own for a topic with properties."""
    host = {"Host": f"127.0.0.1:{browser.admin.address[1]}"}
    own_type = "application/vnd.partitioned-topic-metadata+json"
    body = '{"partitions":3,"deleted":false,"properties":{"k":"v"}}'
    assert (await browser("PUT", PARTITIONS, body, Content_Type=own_type, **host))[0] == 204
    plain = "/admin/v2/persistent/public/default/y"
    assert (await browser("PUT", plain, "{}", Content_Type=f"{JSON}; charset=utf-8", **host))[0] == 204
    namespace = "/admin/v2/namespaces/public/n"
    assert (await browser("PUT", namespace, Content_Type=JSON, Content_Length="0", **host))[0] == 204
    assert (await browser("DELETE", namespace, **host))[0] == 204
    assert (await browser("PUT", namespace, Content_Length="0", **host))[0] == 204
