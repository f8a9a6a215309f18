"""The admin's paths of a topic's messages: terminate, truncate, skip, and looking at single ones.

A single message is answered as Pulsar does it: what the producer sent is the body, decompressed, and the metadata are
`X-Pulsar-` headers. A batch is answered whole; `X-Pulsar-num-batch-message` says so.
"""

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime

from aiohttp import web

from ...protocol.compression import decompress
from ...protocol.entries import parse_entry
from ...protocol.errors import NoSuchEntry
from ...protocol.pulsar_pb2 import CompressionType, MessageMetadata
from ...protocol.topics import TopicName
from ..members.contracts_broker import BacklogAnalysis, BrokerContract, EntryPosition, StoredEntry
from ..security.authorization import CONSUME, TOPIC_ADMIN
from .requests import (
    MESSAGE_ID,
    PLACE,
    Owners,
    Question,
    at_a_time,
    json_answer,
    json_body,
    no_content,
    position_of,
    topic_of,
    whole_number,
)
from .routes import (
    ANYTHING,
    BYTES,
    FLAG,
    NATURAL,
    SUBSCRIPTION_ROUTE,
    TEXT,
    TOPIC_ROUTE,
    Parameter,
    Route,
    ValueSchema,
    delete,
    get,
    post,
)
from .shapes import map_of

DECOMPRESSED_SIZE_MAX = 80 << 20
FILTERED = ("Rejected", "Accepted", "Rescheduled")
"""What a filter of entries would do with an entry. There are none, so all are accepted."""
SKIPPED_MAX = (1 << 31) - 1

ANALYSIS: ValueSchema = {
    "type": "object",
    "properties": {
        "entries": NATURAL,
        "messages": NATURAL,
        "markerMessages": NATURAL,
        **{f"filter{what}{of}": NATURAL for what in FILTERED for of in ("Entries", "Messages")},
        "aborted": FLAG,
        "firstMessageId": TEXT,
        "lastMessageId": TEXT,
    },
    "required": ["entries", "messages", "aborted"],
}
NUMBER = Parameter("messagePosition", NATURAL, "The number of the message, from 1.")
FROM = Parameter("initialPosition", {"type": "string", "enum": ["earliest", "latest"]}, "Where to count from.")


class MessageRoutes:
    """See the module."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    def routes(self) -> list[Route]:
        topic, subscription = TOPIC_ROUTE, SUBSCRIPTION_ROUTE
        return [
            post(TOPIC_ADMIN, topic + "/terminate", self.terminate, answer=MESSAGE_ID),
            post(TOPIC_ADMIN, topic + "/terminate/partitions", self.terminate_partitions, answer=map_of(MESSAGE_ID)),
            delete(TOPIC_ADMIN, topic + "/truncate", self.truncate),
            Route(TOPIC_ADMIN, "POST", topic + "/trim", self.trim, answer=ANYTHING, may_be_empty=True),
            post(CONSUME, subscription + "/skip/{messages}", self.skip),
            post(
                CONSUME,
                subscription + "/analyzeBacklog",
                self.analyze_backlog,
                PLACE,
                optional_body=True,
                answer=ANALYSIS,
            ),
            get(CONSUME, subscription + "/position/{position}", self.peek, ANYTHING, content_type=BYTES),
            get(CONSUME, topic + "/examinemessage", self.examine, ANYTHING, query=(NUMBER, FROM), content_type=BYTES),
            get(CONSUME, topic + "/ledger/{ledger}/entry/{entry}", self.entry, ANYTHING, content_type=BYTES),
            get(CONSUME, topic + "/messageid/{timestamp}", self.message_id, MESSAGE_ID),
        ]

    # -- the backlog ---------------------------------------------------------------------------------------------

    async def trim(self, request: web.Request) -> web.Response:
        """Delete the ledgers of a topic, or of its partitions, that nothing needs. The body is empty."""
        topic = topic_of(request)
        if not topic.persistent:
            raise web.HTTPMethodNotAllowed("POST", [], text="a non-persistent topic stores nothing to trim")
        await self._owners.ask_members(topic, lambda broker, name: broker.trim(topic=name))
        return web.Response()

    async def analyze_backlog(self, request: web.Request) -> web.Response:
        """Read the backlog of a subscription, and count its entries and messages. Body: the message id to begin at.

        Without a body it begins at the first message that is not acknowledged. `aborted` says that the analysis ended
        early: see `subscriptionBacklogScanMaxEntries`.
        """
        topic, name = topic_of(request), request.match_info["subscription"]
        body = await json_body(request)
        begin = position_of(body, "latest") if body is not None else None
        if begin == "earliest":
            begin = [-1, -1]
        place = [(1 << 63) - 1, 0] if isinstance(begin, str) else begin
        await self._check_one(topic, "analyze the backlog of each partition")
        found = await self._owners.ask(
            topic.full, lambda broker, full: broker.analyze_backlog(topic=full, subscription=name, position=place)
        )
        return json_answer(_analysis_json(found))

    # -- changes -------------------------------------------------------------------------------------------------

    async def terminate(self, request: web.Request) -> web.Response:
        """Let a topic or partition take no message from now on, for ever. Returns the id of the last one."""
        topic = topic_of(request)
        if not topic.persistent:
            raise web.HTTPNotAcceptable(text="only a persistent topic can be terminated")
        await self._check_one(topic, "terminate all partitions with POST …/terminate/partitions")
        return json_answer(_id_json(await self._owners.ask(topic.full, _terminate)))

    async def terminate_partitions(self, request: web.Request) -> web.Response:
        """Terminate all partitions of a topic. Returns the last message id of each, by its number."""
        topic = topic_of(request)
        count = await self._owners.partitions(topic)
        if not count:
            raise web.HTTPMethodNotAllowed("POST", [], text=f"{topic.full} has no partitions: POST …/terminate")
        names = [topic.partition_name(index) for index in range(count)]
        ends = await at_a_time([lambda name=name: self._owners.ask(name, _terminate) for name in names])
        return json_answer({str(index): _id_json(end) for index, end in enumerate(ends)})

    async def truncate(self, request: web.Request) -> web.Response:
        """Acknowledge the backlog of every subscription, and delete what is no longer needed."""
        topic = topic_of(request)
        if not topic.persistent:
            raise web.HTTPPreconditionFailed(text="a non-persistent topic stores nothing to truncate")
        await self._owners.ask_members(topic, lambda broker, name: broker.truncate(topic=name))
        return no_content()

    async def skip(self, request: web.Request) -> web.Response:
        """Acknowledge the next messages of a subscription; batches count as one."""
        topic, subscription = topic_of(request), request.match_info["subscription"]
        await self._check_one(topic, "skip messages of each partition")
        entries = min(whole_number(request.match_info["messages"], "the number of messages"), SKIPPED_MAX)
        await self._owners.ask(
            topic.full, lambda broker, name: broker.skip(topic=name, subscription=subscription, entries=entries)
        )
        return no_content()

    # -- single messages -----------------------------------------------------------------------------------------

    async def peek(self, request: web.Request) -> web.Response:
        """Return a message of a subscription's backlog by its number, from 1."""
        subscription = request.match_info["subscription"]
        number = whole_number(request.match_info["position"], "the number of the message")
        return await self._message(
            request, lambda broker, name: broker.peek(topic=name, subscription=subscription, number=number)
        )

    async def examine(self, request: web.Request) -> web.Response:
        """Return message number `messagePosition` of a topic, from 1, counted from `initialPosition`."""
        number = whole_number(request.query.get("messagePosition", "1"), "messagePosition")
        from_latest = request.query.get("initialPosition") != "earliest"
        return await self._message(
            request,
            lambda broker, name: broker.examine(topic=name, number=number, from_latest=from_latest),
            missing=web.HTTPPreconditionFailed,  # of an empty topic: of another one the nearest message is shown
        )

    async def entry(self, request: web.Request) -> web.Response:
        """Return the message with an id."""
        ledger = whole_number(request.match_info["ledger"], "the ledger id")
        entry = whole_number(request.match_info["entry"], "the entry id")
        return await self._message(
            request, lambda broker, name: broker.entry_at(topic=name, ledger=ledger, entry=entry)
        )

    async def message_id(self, request: web.Request) -> web.Response:
        """Return the id of the first message that was published at a time, in ms since the epoch, or later."""
        topic = topic_of(request)
        await self._check_one(topic, "ask for one of them")
        time_ms = whole_number(request.match_info["timestamp"], "a time")
        place = await self._owners.ask(
            topic.full, lambda broker, name: broker.find_entry(topic=name, publish_time_ms=time_ms)
        )
        return json_answer(_id_json(place))

    # -- inside --------------------------------------------------------------------------------------------------

    async def _check_one(self, topic: TopicName, instead: str) -> None:
        """Raises HTTP 405 for a topic with partitions."""
        if await self._owners.partitions(topic):
            raise web.HTTPMethodNotAllowed("GET", [], text=f"{topic.full} has partitions: {instead}")

    async def _message(
        self,
        request: web.Request,
        question: Question[StoredEntry],
        missing: type[web.HTTPException] = web.HTTPNotFound,
    ) -> web.Response:
        topic = topic_of(request)
        await self._check_one(topic, "ask for a message of one of them")
        try:
            found = await self._owners.ask(topic.full, question)
        except NoSuchEntry as error:
            raise missing(text=str(error)) from None
        metadata, payload = parse_entry(found.data)
        body = bytes(payload)
        if not metadata.encryption_keys and metadata.compression:
            body = decompress(metadata.compression, body, metadata.uncompressed_size, DECOMPRESSED_SIZE_MAX)
        headers = {f"X-Pulsar-{name}": _printable(value) for name, value in _headers(found, metadata)}
        return web.Response(body=body, headers=headers, content_type="application/octet-stream")


async def _terminate(broker: BrokerContract, name: str) -> EntryPosition:
    return await broker.terminate(topic=name)


def _id_json(place: EntryPosition) -> dict[str, int]:
    return {
        "ledgerId": place.ledger,
        "entryId": place.entry,
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    }


def _headers(found: StoredEntry, metadata: MessageMetadata) -> Iterator[tuple[str, str]]:
    """The headers of a message, without `X-Pulsar-`. A field that the producer did not set has none."""
    yield "Message-ID", f"{found.ledger}:{found.entry}"
    yield "PROPERTY", json.dumps({item.key: item.value for item in metadata.properties}, separators=(",", ":"))
    yield "Is-Encrypted", _word(bool(metadata.encryption_keys))
    yield "txn-uncommitted", "false"
    for field, name in _TIMES.items():
        if metadata.HasField(field):
            yield name, _time_text(getattr(metadata, field))
    for field, name in _PLAIN.items():
        if metadata.HasField(field):
            value: object = getattr(metadata, field)
            yield name, _word(value) if isinstance(value, bool) else str(value)
    for field, name in _BYTES.items():
        if metadata.HasField(field):
            yield name, base64.b64encode(getattr(metadata, field)).decode()
    if metadata.HasField("num_messages_in_batch"):
        yield "batch-size", str(len(found.data) - metadata.ByteSize())
    if metadata.HasField("compression"):
        yield "compression", CompressionType.Name(metadata.compression)
    for key in metadata.encryption_keys:
        yield "Base64-encryption-keys", base64.b64encode(key.SerializeToString()).decode()


_TIMES = {"publish_time": "publish-time", "event_time": "event-time", "deliver_at_time": "deliver-at-time"}
_PLAIN = {
    "num_messages_in_batch": "num-batch-message",
    "null_value": "null-value",
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "marker_type": "marker-type",
    "highest_sequence_id": "highest-sequence-id",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "null_partition_key": "null-partition-key",
}
_BYTES = {
    "encryption_param": "Base64-encryption-param",
    "schema_version": "Base64-schema-version",
    "ordering_key": "Base64-ordering-key",
}


def _word(value: bool) -> str:
    return "true" if value else "false"


def _time_text(time_ms: int) -> str:
    """As Pulsar writes it. A time beyond the year 9999 is shown as milliseconds."""
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return text.replace("+00:00", "Z")


def _printable(value: str) -> str:
    """What a producer wrote must not end a header."""
    return "".join(one if one.isprintable() else "?" for one in value)


def _analysis_json(found: BacklogAnalysis) -> dict[str, object]:
    counted = {"Entries": found.entries, "Messages": found.messages}
    ends = {"firstMessageId": found.first, "lastMessageId": found.last} if found.entries else {}
    return {
        "entries": found.entries,
        "messages": found.messages,
        "markerMessages": 0,
        **{
            f"filter{what}{of}": count if what == "Accepted" else 0
            for what in FILTERED
            for of, count in counted.items()
        },
        "aborted": found.aborted,
        **{name: f"{place.ledger}:{place.entry}" for name, place in ends.items()},
    }
