"""The admin's paths that do something to all topics of a namespace, and of what Pulsar divides a namespace into.

Topics are placed one by one, so a namespace has one bundle, which is all of it. Its clusters are this one.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from ...protocol.errors import InvalidConfiguration, SubscriptionNotFound, TopicNotFound
from ...protocol.topics import PERSISTENT
from ...runtime.settings.declarations import Settings
from ..members.contracts_broker import BrokerContract
from ..members.topic_lookup import pages
from ..security.authorization import NAMESPACE_ADMIN, NAMESPACE_CONSUME, NAMESPACE_USER
from .requests import Owners, at_a_time, json_answer, json_body, namespace_of, no_content
from .routes import NAMESPACE_ROUTE, PLAIN, TEXT, TEXTS, WHOLE, Route, get, post, put
from .shapes import object_of

FIRST, LAST = "0x00000000", "0xffffffff"
BUNDLES = {"boundaries": [FIRST, LAST], "numBundles": 1}


class NamespaceRoutes:
    """See the module."""

    def __init__(self, settings: Settings, owners: Owners) -> None:
        self._cluster = settings.cluster_name
        self._owners = owners
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        namespace = NAMESPACE_ROUTE
        lookup = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle"
        return [
            get(NAMESPACE_USER, namespace + "/bundles", self.bundles, object_of(boundaries=TEXTS, numBundles=WHOLE)),
            get(NAMESPACE_USER, lookup, self.bundle, TEXT, content_type=PLAIN),
            get(NAMESPACE_ADMIN, namespace + "/replication", self.clusters, TEXTS),
            post(NAMESPACE_ADMIN, namespace + "/replication", self.set_clusters, TEXTS),
            put(NAMESPACE_ADMIN, namespace + "/unload", self.unload),
            post(NAMESPACE_CONSUME, namespace + "/clearBacklog", self.clear_backlog),
            post(NAMESPACE_CONSUME, namespace + "/clearBacklog/{subscription_name}", self.clear_backlog),
            post(NAMESPACE_CONSUME, namespace + "/unsubscribe/{subscription_name}", self.unsubscribe),
        ]

    async def bundles(self, request: web.Request) -> web.Response:
        """Return the boundaries of the namespace's bundles: one bundle has all topics."""
        await self._check(request)
        return json_answer(BUNDLES)

    async def bundle(self, request: web.Request) -> web.Response:
        """Return the bundle of a topic: the only one."""
        await self._check(request)
        return web.Response(text=f"{FIRST}_{LAST}")

    async def clusters(self, request: web.Request) -> web.Response:
        """List the clusters that have the namespace: this one."""
        await self._check(request)
        return json_answer([self._cluster])

    async def set_clusters(self, request: web.Request) -> web.Response:
        """Set the clusters that have the namespace. Body: a list with this cluster, and no other."""
        await self._check(request)
        if await json_body(request) != [self._cluster]:
            raise InvalidConfiguration(f"a namespace is in this cluster, and in no other: {self._cluster}")
        return no_content()

    async def unload(self, request: web.Request) -> web.Response:
        """Move all topics of a namespace to other brokers."""
        await self._each(request, None, lambda name: self._ask.unload(topic=name))
        return no_content()

    async def clear_backlog(self, request: web.Request) -> web.Response:
        """Acknowledge the backlog of a subscription, or of all, on all topics of a namespace."""
        subscription = request.match_info.get("subscription_name")

        async def clear(broker: BrokerContract, topic: str) -> None:
            names = [subscription] if subscription is not None else await _durable_names(broker, topic)
            for name in names:
                await broker.skip_all(topic=topic, subscription=name)

        await self._each(request, PERSISTENT, lambda name: self._owners.ask(name, clear))
        return no_content()

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription on all topics of a namespace."""
        subscription = request.match_info["subscription_name"]

        async def remove(broker: BrokerContract, topic: str) -> None:
            await broker.delete_subscription(topic=topic, subscription=subscription)

        await self._each(request, PERSISTENT, lambda name: self._owners.ask(name, remove))
        return no_content()

    async def _check(self, request: web.Request) -> None:
        """Raises TopicNotFound for a missing namespace."""
        await self._ask.namespace(namespace=namespace_of(request))

    async def _each(self, request: web.Request, domain: str | None, change: Callable[[str], Awaitable[None]]) -> None:
        """Change all topics of a namespace, page by page. What is not there needs no change."""
        await self._check(request)

        async def try_change(name: str) -> None:
            try:
                await change(name)
            except (TopicNotFound, SubscriptionNotFound):
                pass  # it was deleted meanwhile, or does not have the subscription

        async for names in pages(self._ask, namespace_of(request), domain):
            await at_a_time([lambda name=name: try_change(name) for name in names])


async def _durable_names(broker: BrokerContract, topic: str) -> list[str]:
    figures = await broker.topic_stats(topic=topic)
    return [one.name for one in figures.subscriptions if one.durable]
