"""The admin's paths of the properties of namespaces, topics and subscriptions: texts that an administrator notes.

Those of a namespace and a topic stand in its record. As in Pulsar, PUT adds to them. Those of a subscription stand in
its cursor, and PUT replaces them. A partition has none of its own. Non-persistent topics have none (406).
"""

from aiohttp import web

from ...protocol.errors import SubscriptionNotFound
from ...protocol.properties import Properties
from ..security.authorization import CONSUME, NAMESPACE_ADMIN, TOPIC_ADMIN, TOPIC_USER
from .requests import Owners, json_answer, json_body, namespace_of, no_content, texts_of, topic_of
from .routes import NAMESPACE_ROUTE, PLAIN, SUBSCRIPTION_ROUTE, TEXT, TOPIC_ROUTE, Parameter, Route, delete, get, put
from .shapes import map_of

KEY = Parameter("key", TEXT, "The name of the property.")


class PropertyRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        subscription = SUBSCRIPTION_ROUTE + "/properties"
        topic, namespace = TOPIC_ROUTE + "/properties", NAMESPACE_ROUTE + "/properties"
        one = NAMESPACE_ROUTE + "/property/{property}"
        return [
            get(CONSUME, subscription, self.properties, map_of(TEXT)),
            put(CONSUME, subscription, self.replace, map_of(TEXT), optional_body=True),
            get(TOPIC_USER, topic, self.topic_properties, map_of(TEXT)),
            put(TOPIC_ADMIN, topic, self.add_to_topic, map_of(TEXT), optional_body=True),
            delete(TOPIC_ADMIN, topic, self.remove_from_topic, query=(KEY,)),
            get(NAMESPACE_ADMIN, namespace, self.namespace_properties, map_of(TEXT)),
            put(NAMESPACE_ADMIN, namespace, self.add_to_namespace, map_of(TEXT)),
            delete(NAMESPACE_ADMIN, namespace, self.clear_namespace),
            get(NAMESPACE_ADMIN, one, self.namespace_property, TEXT, may_be_empty=True, content_type=PLAIN),
            put(NAMESPACE_ADMIN, NAMESPACE_ROUTE + "/property/{property}/{text}", self.set_namespace_property),
            delete(
                NAMESPACE_ADMIN, one, self.remove_from_namespace, answer=TEXT, may_be_empty=True, content_type=PLAIN
            ),
        ]

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def properties(self, request: web.Request) -> web.Response:
        """Return the properties of a subscription."""
        name = request.match_info["subscription"]
        figures = await self._owners.ask_members(
            topic_of(request), lambda broker, topic: broker.topic_stats(topic=topic)
        )
        found = [one for topic in figures.values() for one in topic.subscriptions if one.name == name]
        if not found:
            raise SubscriptionNotFound(f"Subscription {name} of {topic_of(request).full} does not exist")
        return json_answer({key: value for one in found for key, value in one.properties.items()})

    async def replace(self, request: web.Request) -> web.Response:
        """Replace the properties of a subscription. Body: an object of texts."""
        name, body = request.match_info["subscription"], await json_body(request)
        properties = texts_of({} if body is None else body)
        await self._owners.ask_members(
            topic_of(request),
            lambda broker, topic: broker.set_subscription_properties(
                topic=topic, subscription=name, properties=properties
            ),
        )
        return no_content()

    # -- topics --------------------------------------------------------------------------------------------------

    async def topic_properties(self, request: web.Request) -> web.Response:
        """Return the properties of a topic."""
        return json_answer(await self._ask.topic_properties(topic=_persistent(request)))

    async def add_to_topic(self, request: web.Request) -> web.Response:
        """Add properties to a topic. Body: an object of texts."""
        body = await json_body(request)
        added = texts_of({} if body is None else body)
        await self._ask.change_topic_properties(topic=_persistent(request), put=added)
        return no_content()

    async def remove_from_topic(self, request: web.Request) -> web.Response:
        """Remove a property of a topic: the one that `key` names."""
        if "key" not in request.query:
            raise web.HTTPBadRequest(text="name the property to remove: pass it as key in the query")
        await self._ask.change_topic_properties(topic=_persistent(request), put={}, remove=[request.query["key"]])
        return no_content()

    # -- namespaces ----------------------------------------------------------------------------------------------

    async def namespace_properties(self, request: web.Request) -> web.Response:
        """Return the properties of a namespace."""
        return json_answer(await self._of_namespace(request))

    async def namespace_property(self, request: web.Request) -> web.Response:
        """Return one property of a namespace. The body is empty if the namespace does not have it."""
        return web.Response(text=(await self._of_namespace(request)).get(request.match_info["property"], ""))

    async def add_to_namespace(self, request: web.Request) -> web.Response:
        """Add properties to a namespace. Body: an object of texts."""
        added = texts_of(await json_body(request))
        await self._ask.change_namespace_properties(namespace=namespace_of(request), put=added)
        return no_content()

    async def set_namespace_property(self, request: web.Request) -> web.Response:
        """Set one property of a namespace."""
        added = {request.match_info["property"]: request.match_info["text"]}
        await self._ask.change_namespace_properties(namespace=namespace_of(request), put=added)
        return no_content()

    async def remove_from_namespace(self, request: web.Request) -> web.Response:
        """Remove one property of a namespace, and return it. The body is empty if the namespace does not have it."""
        name = request.match_info["property"]
        found = await self._of_namespace(request)
        await self._ask.change_namespace_properties(namespace=namespace_of(request), put={}, remove=[name])
        return web.Response(text=found.get(name, ""))

    async def clear_namespace(self, request: web.Request) -> web.Response:
        """Remove all properties of a namespace."""
        await self._ask.change_namespace_properties(namespace=namespace_of(request), put={}, clear=True)
        return no_content()

    async def _of_namespace(self, request: web.Request) -> Properties:
        return await self._ask.namespace_properties(namespace=namespace_of(request))


def _persistent(request: web.Request) -> str:
    """The full name of the topic in a path. Raises HTTP 406, as Pulsar does, for a non-persistent one."""
    topic = topic_of(request)
    if not topic.persistent:
        raise web.HTTPNotAcceptable(text=f"{topic.full} has no properties: name a persistent topic")
    return topic.full
