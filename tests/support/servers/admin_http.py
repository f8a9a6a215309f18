"""An admin service in front of a real coordinator, with brokers that only answer about topics."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from yarl import URL

from magnetar.actors.admin.service import AdminService
from magnetar.protocol.errors import ConflictError, ServiceUnitNotReady, SubscriptionNotFound
from magnetar.protocol.topic_figures import StorageFigures, TopicFigures
from magnetar.runtime.settings.declarations import Settings
from support.fakes.topic_figures import producer_figures, storage_figures, topic_figures
from support.servers.coordination import CLUSTER, FAST, KEYS, Coordination, Member, TestBrokerRpc


class AdminBrokerRpc(TestBrokerRpc):
    """Answers about topics; `calls` remembers who asked for what."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []
        self.not_ready = 0

    async def topic_stats(self, *, topic: str) -> TopicFigures:
        if self.not_ready:
            self.not_ready -= 1
            raise ServiceUnitNotReady("moving")
        return topic_figures(producers=[producer_figures(topic)], pending_publishes=0)

    async def internal_stats(self, *, topic: str) -> StorageFigures:
        return storage_figures(3)

    async def last_message_id(self, *, topic: str) -> list[int]:
        return [1, 2, -1, -1]

    async def create_subscription(self, *, topic: str, subscription: str, position: Any) -> None:
        call = ("create", topic, subscription)
        if call in self.calls:
            raise ConflictError("it exists")
        self.calls += [call, (json.dumps(position),)]

    async def delete_subscription(self, *, topic: str, subscription: str, force: bool) -> None:
        if subscription == "missing":
            raise SubscriptionNotFound("it does not exist")
        self.calls.append(("delete", topic, subscription, str(force)))

    async def reset_cursor(self, *, topic: str, subscription: str, position: Any) -> None:
        self.calls.append(("reset", topic, subscription, json.dumps(position)))

    async def skip_all(self, *, topic: str, subscription: str) -> None:
        self.calls.append(("skip_all", topic, subscription))


class Http:
    """Asks the admin; answers (status, body). Paths are sent as they are."""

    def __init__(self, cluster: Coordination, admin: AdminService, session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.admin = admin
        self._session = session

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        host, port = self.admin.address
        data = text if text is not None else json.dumps(body) if body is not None else None
        url = URL(f"http://{host}:{port}{path}", encoded=True)
        given = {"Content-Type": "application/json"} if data is not None else {}
        async with self._session.request(method, url, data=data, headers={**given, **(headers or {})}) as answer:
            content = await answer.text()
            return answer.status, json.loads(content) if answer.content_type == "application/json" else content


@contextlib.asynccontextmanager
async def admin_of(cluster: Coordination, settings: Settings = FAST) -> AsyncIterator[Http]:
    admin = AdminService(cluster.env, CLUSTER, KEYS, settings, "127.0.0.1", 0, cluster.locate)
    await admin.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Http(cluster, admin, session)
    finally:
        await admin.close()


async def join_broker(cluster: Coordination, number: int) -> Member:
    return await cluster.join("broker", f"broker-{number}", rpc_service=AdminBrokerRpc())
