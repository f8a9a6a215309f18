"""The admin's paths of the properties of subscriptions."""

from aiohttp import web

from ...protocol.errors import SubscriptionNotFound
from ...protocol.plain_values import is_text_map
from .requests import Owners, json_answer, json_body, no_content, topic_of
from .routes import TEXT, Route, get, put
from .shapes import map_of


class PropertyRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        topic = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
        path = topic + "/subscription/{subscription}/properties"
        return [get(path, self.properties, map_of(TEXT)), put(path, self.replace, map_of(TEXT), optional_body=True)]

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
        properties = _texts({} if body is None else body)
        await self._owners.ask_members(
            topic_of(request),
            lambda broker, topic: broker.set_subscription_properties(
                topic=topic, subscription=name, properties=properties
            ),
        )
        return no_content()


def _texts(body: object) -> dict[str, str]:
    """Raises HTTP 400 for anything but an object of texts."""
    if not is_text_map(body):
        raise web.HTTPBadRequest(text="properties are an object of texts")
    texts = {key: value for key, value in body.items() if isinstance(value, str)}
    if len(texts) < len(body):
        raise web.HTTPBadRequest(text="properties are an object of texts")
    return texts
