"""The admin's paths that show how topics are stored: ledgers, cursors, and the bytes behind a message."""

from aiohttp import web

from ...protocol.errors import TopicNotFound
from ...protocol.topic_figures import StorageFigures
from ..members.contracts_broker import BrokerContract
from .requests import MESSAGE_ID, Owners, json_answer, json_body, no_content, position_of, topic_of
from .routes import TOPIC_ROUTE, WHOLE, Route, get, post, put
from .shapes import NAME, example_of, shape_of
from .topic_figures import partitioned_storage_json, storage_info_json, storage_json

_STORAGE: StorageFigures = example_of(StorageFigures)
_INFO = storage_info_json(_STORAGE)
INFO = shape_of({**_INFO, "partitions": {NAME: _INFO}})


class InsideRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        topic = TOPIC_ROUTE
        partitioned = shape_of(partitioned_storage_json({NAME: _STORAGE}))
        return [
            get(topic + "/internalStats", self.internal_stats, shape_of(storage_json(_STORAGE))),
            get(topic + "/internal-info", self.internal_info, INFO),
            get(topic + "/partitioned-internalStats", self.partitioned_internal_stats, partitioned),
            put(topic + "/backlogSize", self.backlog_size, MESSAGE_ID, answer=WHOLE),
            post(topic + "/createMissedPartitions", self.create_missed_partitions),
        ]

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Return ledgers and cursors of a topic."""
        return json_answer(storage_json(await self._owners.ask_plain(topic_of(request), _storage)))

    async def internal_info(self, request: web.Request) -> web.Response:
        """Return what is stored of a topic, or of its partitions: ledgers, and how far the cursors are."""
        topic = topic_of(request)
        figures = await self._owners.ask_members(topic, _storage)
        shown = {name: storage_info_json(storage) for name, storage in figures.items()}
        return json_answer(shown[topic.full] if topic.full in shown else {"partitions": shown})

    async def partitioned_internal_stats(self, request: web.Request) -> web.Response:
        """Return ledgers and cursors of each partition of a topic."""
        topic = topic_of(request)
        if not await self._owners.partitions(topic):
            raise TopicNotFound(f"{topic.full} is not a partitioned topic")
        return json_answer(partitioned_storage_json(await self._owners.ask_members(topic, _storage)))

    async def backlog_size(self, request: web.Request) -> web.Response:
        """Return how many bytes a topic stores behind a message. Body: its id."""
        topic = topic_of(request)
        place = position_of(await json_body(request), "earliest")
        if isinstance(place, str):
            place = [-1, -1] if place == "earliest" else [(1 << 63) - 1, 0]
        ledger, entry = place
        if await self._owners.partitions(topic):
            raise web.HTTPMethodNotAllowed("PUT", [], text=f"{topic.full} has partitions: ask for one of them")
        size = await self._owners.ask(
            topic.full, lambda broker, name: broker.bytes_after(topic=name, ledger=ledger, entry=entry)
        )
        return json_answer(size)

    async def create_missed_partitions(self, request: web.Request) -> web.Response:
        """Store the partitions that nobody has opened yet. As in Pulsar, they get no subscriptions by this."""
        topic = topic_of(request)
        if topic.partition >= 0:
            raise web.HTTPPreconditionFailed(text=f"{topic.full} is a partition: name the whole topic")
        if not await self._owners.partitions(topic):
            raise TopicNotFound(f"{topic.full} is not a partitioned topic")
        if topic.persistent:
            await self._owners.ask_members(topic, _storage)
        return no_content()


async def _storage(broker: BrokerContract, topic: str) -> StorageFigures:
    return await broker.internal_stats(topic=topic)
