"""The admin's paths of compaction, `/admin/v2/persistent/…/compaction`."""

from aiohttp import web

from ...protocol.errors import NotAllowedError, TopicNotFound
from ...protocol.topics import TopicName
from .requests import Owners, json_answer, no_content, topic_of
from .routes import TEXT, TOPIC_ROUTE, Route, get, put
from .shapes import object_of
from .topic_figures import compaction_status_json


class CompactionRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        path = TOPIC_ROUTE + "/compaction"
        return [put(path, self.compact), get(path, self.status, object_of(status=TEXT, lastError=TEXT))]

    async def compact(self, request: web.Request) -> web.Response:
        """Begin to compact a topic or all its partitions: keep the last message of each key."""
        topic = topic_of(request)
        _check_persistent(topic)
        try:
            await self._owners.ask_members(topic, lambda broker, name: broker.compact(topic=name))
        except NotAllowedError as error:
            raise web.HTTPConflict(text=str(error)) from None
        return no_content()

    async def status(self, request: web.Request) -> web.Response:
        """Return how the last compaction of a topic or partition went: `{"status": …, "lastError": …}`."""
        topic = topic_of(request)
        _check_persistent(topic)
        if await self._owners.coordinator.ask.partitions(topic=topic.full):
            raise TopicNotFound(f"{topic.full} has partitions: ask for one of them")
        answer = await self._owners.ask(topic.full, lambda broker, name: broker.compaction_status(topic=name))
        return json_answer(compaction_status_json(answer))


def _check_persistent(topic: TopicName) -> None:
    """Raises HTTP 405 for a topic that stores nothing."""
    if not topic.persistent:
        raise web.HTTPMethodNotAllowed("PUT", [], text="a non-persistent topic stores nothing to compact")
