"""The admin's paths of topics and subscriptions, `/admin/v2/persistent/…`, and of lookup."""

import contextlib
from dataclasses import replace

from aiohttp import web

from ...protocol.errors import (
    ConflictError,
    InvalidConfiguration,
    KeyExists,
    NoSuchListener,
    NotAllowedError,
    TopicNotFound,
)
from ...protocol.lenient_values import as_whole
from ...protocol.plain_values import is_text_map
from ...protocol.system_topics import is_system_topic
from ...protocol.topic_figures import TopicFigures
from ...protocol.topics import TopicName
from ..members.broker_addresses import reach
from ..members.contracts_broker import Point
from ..members.topic_lookup import PAGE, pages
from ..security.authorization import CONSUME, NAMESPACE_ADMIN, NAMESPACE_USER, TOPIC_ADMIN, TOPIC_USER
from .requests import (
    MESSAGE_ID,
    PLACE,
    Owners,
    PlaceInBatch,
    domain_of,
    flag,
    json_answer,
    json_body,
    namespace_of,
    no_content,
    place_in_batch,
    position_of,
    texts_of,
    topic_of,
    whole_number,
)
from .routes import (
    FLAG,
    FORCE,
    NATURAL,
    SUBSCRIPTION_ROUTE,
    TEXT,
    TEXTS,
    TOPIC_ROUTE,
    TOPICS_ROUTE,
    Parameter,
    Route,
    ValueSchema,
    delete,
    get,
    post,
    put,
)
from .shapes import NAME, example_of, map_of, object_of, shape_of, with_optional
from .topic_figures import compaction_status_json, partitioned_json, subscription_names, topic_json

PARTITIONS_SHAPE: ValueSchema = {
    "type": "object",
    "properties": {"partitions": NATURAL, "deleted": FLAG, "properties": map_of(TEXT)},
    "required": ["partitions", "deleted"],
}
PARTITIONS: ValueSchema = {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1}
NEW_PARTITIONS: ValueSchema = {"oneOf": [PARTITIONS, object_of(partitions=PARTITIONS, properties=map_of(TEXT))]}
MAY_CREATE = Parameter("checkAllowAutoCreation", FLAG, "Whether a missing topic that would be created has 0.")
EACH = Parameter("perPartition", FLAG, "Whether each partition is shown, too.")
DESTINATION = Parameter("destinationBroker", TEXT, "The broker to move to.")
LISTENER = Parameter("listenerName", TEXT, "The listener whose address is asked for.")
LOOKUP = with_optional(
    object_of(brokerUrl=TEXT, nativeUrl=TEXT, httpUrl=TEXT, brokerUrlSsl=TEXT), brokerUrlTls=TEXT, httpUrlTls=TEXT
)

_TOPIC: TopicFigures = example_of(TopicFigures)
TOPIC_SHAPE = shape_of({**topic_json(replace(_TOPIC, persistent=False)), **topic_json(_TOPIC)})
PARTITIONED_SHAPE = shape_of(partitioned_json({NAME: _TOPIC}, each=True))


class TopicRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._ask = owners.coordinator.ask

    def routes(self) -> list[Route]:
        namespace, topic, subscription = TOPICS_ROUTE, TOPIC_ROUTE, SUBSCRIPTION_ROUTE
        return [
            get(NAMESPACE_USER, namespace, self.list_topics, TEXTS),
            get(NAMESPACE_USER, namespace + "/partitioned", self.list_partitioned, TEXTS),
            put(NAMESPACE_ADMIN, topic + "/partitions", self.create_partitioned, NEW_PARTITIONS),
            post(TOPIC_ADMIN, topic + "/partitions", self.grow, PARTITIONS),
            get(TOPIC_USER, topic + "/partitions", self.partitions, PARTITIONS_SHAPE, query=(MAY_CREATE,)),
            delete(TOPIC_ADMIN, topic + "/partitions", self.delete_partitioned, query=(FORCE,)),
            put(NAMESPACE_ADMIN, topic, self.create, map_of(TEXT), optional_body=True),
            delete(TOPIC_ADMIN, topic, self.delete, query=(FORCE,)),
            get(TOPIC_USER, topic + "/stats", self.stats, TOPIC_SHAPE),
            get(TOPIC_USER, topic + "/partitioned-stats", self.partitioned_stats, PARTITIONED_SHAPE, query=(EACH,)),
            get(CONSUME, topic + "/lastMessageId", self.last_message_id, MESSAGE_ID),
            put(TOPIC_ADMIN, topic + "/unload", self.unload, query=(DESTINATION,)),
            get(CONSUME, topic + "/subscriptions", self.subscriptions, TEXTS),
            put(CONSUME, subscription, self.create_subscription, PLACE, optional_body=True),
            delete(CONSUME, subscription, self.delete_subscription, query=(FORCE,)),
            post(CONSUME, subscription + "/resetcursor", self.reset_cursor, PLACE),
            post(CONSUME, subscription + "/resetcursor/{timestamp}", self.reset_cursor),
            post(CONSUME, subscription + "/skip_all", self.skip_all),
            post(CONSUME, subscription + "/expireMessages/{seconds}", self.expire_messages),
            post(CONSUME, topic + "/all_subscription/expireMessages/{seconds}", self.expire_messages),
            get(
                TOPIC_USER,
                "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}",
                self.lookup,
                LOOKUP,
                query=(LISTENER,),
            ),
        ]

    # -- topics --------------------------------------------------------------------------------------------------

    async def list_topics(self, request: web.Request) -> web.Response:
        """List the full names of a namespace's topics, partitions one by one; with `includeSystemTopic=true` all."""
        system = flag(request, "includeSystemTopic")
        found = pages(self._ask, namespace_of(request), domain_of(request), system=system)
        return json_answer([name async for names in found for name in names])

    async def list_partitioned(self, request: web.Request) -> web.Response:
        """List the full names of a namespace's partitioned topics; with `includeSystemTopic=true` all."""
        domain, system = domain_of(request), flag(request, "includeSystemTopic")
        found: list[str] = []
        after = ""
        while True:
            page = await self._ask.topic_records(namespace=namespace_of(request), after=after, limit=PAGE)
            found += [
                name
                for name, partitions in page
                if partitions and TopicName.parse(name).domain == domain and (system or not is_system_topic(name))
            ]
            if len(page) < PAGE:
                return json_answer(found)
            after = page[-1].topic

    async def create_partitioned(self, request: web.Request) -> web.Response:
        """Create a partitioned topic. Body: the number of partitions, one or more; or an object with `partitions` and
        `properties`."""
        topic, body = topic_of(request), await json_body(request)
        given = body.get("properties") if is_text_map(body) else None
        number = _number_of_partitions(body.get("partitions") if is_text_map(body) else body)
        properties = _properties_of(topic, given)
        await self._ask.create_topic(topic=topic.full, partitions=number, properties=properties)
        return no_content()

    async def grow(self, request: web.Request) -> web.Response:
        """Add partitions, with the subscriptions of the first one. Body: the new number of partitions. The present
        number gives partitions the subscriptions that they lack."""
        topic, partitions = topic_of(request), await _partitions(request)
        await self._check_partitioned(topic)
        try:
            await self._ask.grow_topic(topic=topic.full, partitions=partitions)
        except InvalidConfiguration as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        return no_content()

    async def partitions(self, request: web.Request) -> web.Response:
        """Return the number of partitions: 0 for a topic without, and for a missing one that would be created."""
        topic, asks = topic_of(request), flag(request, "checkAllowAutoCreation")
        try:
            partitions = await self._ask.partitions(topic=topic.full)
        except TopicNotFound as error:
            if not asks or "namespace" in error.details or not await self._owners.creates_plain(topic.namespace):
                raise
            partitions = 0  # a GET creates nothing: its first producer or consumer will
        answer: dict[str, object] = {"partitions": partitions, "deleted": False}
        if partitions and topic.persistent and (found := await self._ask.topic_properties(topic=topic.full)):
            answer["properties"] = found
        return json_answer(answer)

    async def delete_partitioned(self, request: web.Request) -> web.Response:
        """Delete a partitioned topic and its partitions; `force=true` disconnects its clients first."""
        topic = topic_of(request)
        if not await self._ask.partitions(topic=topic.full):
            raise web.HTTPConflict(text=f"{topic.full} is not partitioned: delete it with DELETE …/{topic.local_name}")
        return await self._delete(topic, flag(request, "force"))

    async def create(self, request: web.Request) -> web.Response:
        """Create a topic without partitions. Body: its properties, optional.

        A non-persistent topic lasts as long as the broker that gets it.
        """
        topic = topic_of(request)
        properties = _properties_of(topic, await json_body(request))
        await self._ask.create_topic(topic=topic.full, partitions=0, properties=properties)
        return no_content()

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a topic without partitions; `force=true` disconnects its clients first."""
        topic = topic_of(request)
        if await self._ask.partitions(topic=topic.full):
            raise web.HTTPConflict(text=f"{topic.full} is partitioned: delete it with DELETE …/partitions")
        return await self._delete(topic, flag(request, "force"))

    async def unload(self, request: web.Request) -> web.Response:
        """Move a topic to another broker, `destinationBroker` if given."""
        destination = request.query.get("destinationBroker")
        await self._ask.unload(topic=topic_of(request).full, destination=destination)
        return no_content()

    async def _check_partitioned(self, topic: TopicName) -> None:
        """Raises HTTP 409, as Pulsar does, also for a topic that does not exist."""
        with contextlib.suppress(TopicNotFound):
            if await self._ask.partitions(topic=topic.full):
                return
        raise web.HTTPConflict(text=f"{topic.full} is not a partitioned topic")

    async def _delete(self, topic: TopicName, force: bool) -> web.Response:
        await self._ask.delete_topic(topic=topic.full, force=force)
        return no_content()

    # -- figures -------------------------------------------------------------------------------------------------

    async def stats(self, request: web.Request) -> web.Response:
        """Return rates, backlogs, producers and consumers of a topic."""
        answer = await self._owners.ask_plain(topic_of(request), lambda broker, name: broker.topic_stats(topic=name))
        return json_answer(topic_json(answer))

    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """Return the sums over all partitions; also each one under `partitions` unless `perPartition=false`."""
        topic = topic_of(request)
        if not await self._ask.partitions(topic=topic.full):
            raise TopicNotFound(f"{topic.full} is not a partitioned topic")
        figures = await self._figures(topic)
        return json_answer(partitioned_json(figures, each=flag(request, "perPartition", True)))

    async def _figures(self, topic: TopicName) -> dict[str, TopicFigures]:
        """By full name, of a topic or of its partitions."""
        return await self._owners.ask_members(topic, lambda broker, name: broker.topic_stats(topic=name))

    async def last_message_id(self, request: web.Request) -> web.Response:
        """Return the id of the topic's last message."""
        if not topic_of(request).persistent:
            raise web.HTTPMethodNotAllowed(
                "GET", ["PUT"], text="a non-persistent topic has no last message: ask for its statistics"
            )
        ledger, entry, partition, batch_index = await self._owners.ask_plain(
            topic_of(request), lambda broker, name: broker.last_message_id(topic=name)
        )
        return json_answer(
            {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition, "batchIndex": batch_index}
        )

    # -- subscriptions -------------------------------------------------------------------------------------------

    async def subscriptions(self, request: web.Request) -> web.Response:
        """List the names of the topic's subscriptions, of all partitions together."""
        figures = await self._figures(topic_of(request))
        return json_answer(sorted({name: None for one in figures.values() for name in subscription_names(one)}))

    async def create_subscription(self, request: web.Request) -> web.Response:
        """Create a subscription. Body: the message id to begin at; without one, the latest."""
        position = position_of(await json_body(request), "latest")
        subscription = request.match_info["subscription"]
        if not topic_of(request).persistent:
            raise web.HTTPBadRequest(text="only a consumer creates a subscription of a non-persistent topic")
        members = await self._owners.members(topic_of(request), create=True)
        existed = 0
        for member in members:
            try:
                await self._owners.ask(
                    member,
                    lambda broker, name: broker.create_subscription(
                        topic=name, subscription=subscription, position=position
                    ),
                    create=None,
                )
            except ConflictError:
                existed += 1
        if existed == len(members):
            raise KeyExists(f"Subscription {subscription} already exists")
        return no_content()

    async def delete_subscription(self, request: web.Request) -> web.Response:
        """Delete a subscription; `force=true` disconnects its consumers first."""
        subscription, force = request.match_info["subscription"], flag(request, "force")
        await self._owners.ask_members(
            topic_of(request),
            lambda broker, name: broker.delete_subscription(topic=name, subscription=subscription, force=force),
        )
        return no_content()

    async def reset_cursor(self, request: web.Request) -> web.Response:
        """Move a subscription to the message id in the body, or the publish time in the path (ms since the epoch)."""
        timestamp = request.match_info.get("timestamp")
        position: Point
        within = PlaceInBatch()
        if timestamp is not None:
            position = whole_number(timestamp, "a time")
        else:
            body = await json_body(request)
            if body is None:
                raise InvalidConfiguration("the body must be the message id to reset to")
            position = position_of(body, "latest")
            within = place_in_batch(body)
        subscription = request.match_info["subscription"]
        await self._owners.ask_members(
            topic_of(request),
            lambda broker, name: broker.reset_cursor(
                topic=name, subscription=subscription, position=position, **within
            ),
        )
        return no_content()

    async def skip_all(self, request: web.Request) -> web.Response:
        """Move a subscription to the end of the topic."""
        subscription = request.match_info["subscription"]
        await self._owners.ask_members(
            topic_of(request), lambda broker, name: broker.skip_all(topic=name, subscription=subscription)
        )
        return no_content()

    async def expire_messages(self, request: web.Request) -> web.Response:
        """Count messages published more than so many seconds ago as acknowledged, at one subscription or at all."""
        age_s = whole_number(request.match_info["seconds"], "an age in seconds")
        subscription = request.match_info.get("subscription", "")
        expired = await self._owners.ask_members(
            topic_of(request),
            lambda broker, name: broker.expire_messages(topic=name, age_s=age_s, subscription=subscription),
        )
        if not any(expired.values()):
            raise web.HTTPConflict(text="no message of a backlog is that old, so nothing has expired")
        return no_content()

    # -- lookup --------------------------------------------------------------------------------------------------

    async def lookup(self, request: web.Request) -> web.Response:
        """Return the broker that owns a topic, or that would create it. A GET creates nothing.

        `listenerName`, or the header `X-Pulsar-ListenerName`, chooses among the broker's addresses. `httpUrl` is this
        admin: it answers for every topic.
        """
        listener = request.query.get("listenerName") or request.headers.get("X-Pulsar-ListenerName", "")
        owner = await self._ask.lookup(topic=topic_of(request).full)
        try:
            found = reach(self._owners.coordinator.brokers.values(), owner, listener.strip())
        except NoSuchListener as error:
            # Pulsar answers 500, which calls for another try that cannot succeed.
            raise web.HTTPPreconditionFailed(text=str(error)) from None
        if found.through_proxy:
            raise web.HTTPPreconditionFailed(
                text=f"the brokers forward the connections of the listener {listener[:100]}, which an answer over HTTP "
                "cannot say: look the topic up with a pulsar:// service URL"
            )
        here = f"{request.scheme}://{request.host}"
        secure = request.scheme == "https"
        shown = {"brokerUrl": found.url, "nativeUrl": found.url, "httpUrl": "" if secure else here, "brokerUrlSsl": ""}
        if secure:
            shown["httpUrlTls"] = here
        if found.url_tls:
            shown["brokerUrlTls"] = found.url_tls
        return json_answer(shown)


async def _partitions(request: web.Request) -> int:
    body = await json_body(request)
    return _number_of_partitions(body.get("partitions") if is_text_map(body) else body)


def _number_of_partitions(given: object) -> int:
    value = as_whole(given)
    if type(value) is not int or value >= 1 << 31:
        raise web.HTTPBadRequest(text="the body must be the number of partitions, 1 or more")
    if value < 1:
        raise web.HTTPNotAcceptable(text="the number of partitions must be 1 or more")
    return value


def _properties_of(topic: TopicName, body: object) -> dict[str, str] | None:
    """Those that a request gives to a new topic. Raises HTTP 406 for a non-persistent topic."""
    found = texts_of(body) if body is not None else None
    if found and not topic.persistent:
        raise web.HTTPNotAcceptable(text=f"{topic.full} takes no properties: name a persistent topic")
    return found or None


class CompactionRoutes:
    """The admin's paths of compaction, `/admin/v2/persistent/…/compaction`."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        path = TOPIC_ROUTE + "/compaction"
        return [
            put(TOPIC_ADMIN, path, self.compact),
            get(TOPIC_ADMIN, path, self.status, object_of(status=TEXT, lastError=TEXT)),
        ]

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
