"""How large each text, and how long each list may be that a client puts into a command. One table for all commands.

Pulsar bounds few of them: what a client sends there may be as large as a frame, 5 MB. A broker keeps names, hashes
them, repeats them in answers and statistics, and stores some in the metadata. So each has a bound of its own here. The
bounds lie far above what applications use.

`BOUNDS` has a row for each field of each command that a client sends, if the field is a text, bytes or repeated. A test
walks the descriptors of the commands, and refuses a field without a row. SEND is not in the table: a broker reads only
numbers of it, and the entry behind it is bounded by maxMessageSize.

What exceeds its bound is refused with NotAllowedError, which clients do not try again. If the command has no request
id, the connection ends. `actors.connections.limits` bounds how many of everything a connection may have.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from google.protobuf.message import Message

from .errors import NotAllowedError
from .properties import PROPERTIES_MAX_BYTES
from .pulsar_pb2 import BaseCommand
from .topics import NAME_SIZE_MAX_BYTES

NAME_MAX_BYTES = 1024
"""Names of subscriptions and consumers. They are parts of metadata keys, and are hashed 100 times over."""
TOPIC_MAX_BYTES = NAME_SIZE_MAX_BYTES + 64
"""With domain, slashes and the suffix of a partition. `TopicName` bounds the rest."""
PRODUCER_NAME_MAX_BYTES = TOPIC_MAX_BYTES + 2 * NAME_MAX_BYTES + 64
"""Pulsar's clients name the producer of a dead letter topic after topic, subscription and consumer."""
SCHEMA_MAX_BYTES = 512 << 10
"""A wide bound. `schemas.validation` has the narrow one, with an answer of its own."""
PATTERN_MAX_BYTES = 64 << 10
"""A wide bound. Up to here a pattern above `topicsPatternMaxChars` is not an error: the client matches it itself."""
URL_MAX_BYTES = 4096
AUTH_DATA_MAX_BYTES = 128 << 10
KEY_RANGES_MAX = 1 << 16
"""As many as there are hashes."""
ACK_IDS_MAX = 100_000
"""Message ids in one command. Official clients send 1,000 at a time."""
ACK_SET_WORDS_MAX = 1 << 18
"""Of one batch: 64 messages in each word, and an entry has 2^24 messages at most."""
ITEMS_MAX = 1000


class TextBound(NamedTuple):
    """Bytes of a text in UTF-8, or of a byte string."""

    bytes_max: int


class ListBound(NamedTuple):
    """Members of a list, and their bytes on the wire in all."""

    count_max: int
    bytes_max: int


class NumbersBound(NamedTuple):
    """Numbers of a list."""

    count_max: int


class AtUse(NamedTuple):
    """Members of a list in a command that comes often. What handles the command checks it, if it reads the list."""

    count_max: int


Bound = TextBound | ListBound | NumbersBound | AtUse

NAME = TextBound(NAME_MAX_BYTES)
TOPIC = TextBound(TOPIC_MAX_BYTES)
URL = TextBound(URL_MAX_BYTES)
_PROPERTIES = ListBound(ITEMS_MAX, PROPERTIES_MAX_BYTES)
_ACK_SET = NumbersBound(ACK_SET_WORDS_MAX)
_PRINCIPAL = {
    "original_principal": NAME,
    "original_auth_data": TextBound(AUTH_DATA_MAX_BYTES),
    "original_auth_method": NAME,
}
_SCHEMA = {
    "schema.name": TOPIC,
    "schema.schema_data": TextBound(SCHEMA_MAX_BYTES),
    "schema.properties": _PROPERTIES,
}
_MOVED = {"assignedBrokerServiceUrl": URL, "assignedBrokerServiceUrlTls": URL}

BOUNDS: Mapping[int, Mapping[str, Bound]] = {
    BaseCommand.CONNECT: {
        "client_version": NAME,
        "auth_method_name": NAME,
        "auth_data": TextBound(AUTH_DATA_MAX_BYTES),
        "proxy_to_broker_url": URL,
        "proxy_version": NAME,
        **_PRINCIPAL,
    },
    BaseCommand.LOOKUP: {
        "topic": TOPIC,
        "advertised_listener_name": TextBound(16 << 10),  # the answer to an unknown one is Pulsar's, up to here
        "properties": _PROPERTIES,
        **_PRINCIPAL,
    },
    BaseCommand.PARTITIONED_METADATA: {"topic": TOPIC, **_PRINCIPAL},
    BaseCommand.PRODUCER: {
        "topic": TOPIC,
        "producer_name": TextBound(PRODUCER_NAME_MAX_BYTES),
        "metadata": _PROPERTIES,
        "initial_subscription_name": NAME,
        **_SCHEMA,
    },
    BaseCommand.CLOSE_PRODUCER: _MOVED,
    BaseCommand.SUBSCRIBE: {
        "topic": TOPIC,
        "subscription": NAME,
        "consumer_name": NAME,
        "start_message_id.ack_set": _ACK_SET,
        "metadata": _PROPERTIES,
        "keySharedMeta.hashRanges": ListBound(KEY_RANGES_MAX, KEY_RANGES_MAX * 10),
        "subscription_properties": _PROPERTIES,
        **_SCHEMA,
    },
    BaseCommand.FLOW: {},
    BaseCommand.ACK: {
        "message_id": AtUse(ACK_IDS_MAX),
        "message_id.ack_set": AtUse(ACK_SET_WORDS_MAX),
        "properties": AtUse(ITEMS_MAX),  # which nobody reads
    },
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: {
        "message_ids": AtUse(ACK_IDS_MAX),
        "message_ids.ack_set": AtUse(ACK_SET_WORDS_MAX),  # which nobody reads
    },
    BaseCommand.SEEK: {"message_id.ack_set": _ACK_SET},
    BaseCommand.GET_LAST_MESSAGE_ID: {},
    BaseCommand.UNSUBSCRIBE: {},
    BaseCommand.CLOSE_CONSUMER: _MOVED,
    BaseCommand.CONSUMER_STATS: {},
    BaseCommand.GET_TOPICS_OF_NAMESPACE: {
        "namespace": TOPIC,
        "topics_pattern": TextBound(PATTERN_MAX_BYTES),
        "topics_hash": NAME,
        "properties": _PROPERTIES,
    },
    BaseCommand.WATCH_TOPIC_LIST: {
        "namespace": TOPIC,
        "topics_pattern": TextBound(PATTERN_MAX_BYTES),
        "topics_hash": NAME,
    },
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: {},
    BaseCommand.GET_SCHEMA: {"topic": TOPIC, "schema_version": NAME},
    BaseCommand.GET_OR_CREATE_SCHEMA: {"topic": TOPIC, "producerName": TextBound(PRODUCER_NAME_MAX_BYTES), **_SCHEMA},
    BaseCommand.PING: {},
    BaseCommand.PONG: {},
}


def check_text(what: str, text: str | bytes, bytes_max: int) -> None:
    """Raise NotAllowedError when a text is too long. `what` names it: "the name of the subscription"."""
    if len(text) * 4 > bytes_max:  # a character has at most four bytes
        size = len(text.encode()) if isinstance(text, str) else len(text)
        if size > bytes_max:
            raise NotAllowedError(f"{what} has {size} bytes, more than {bytes_max}: shorten it")


def check_count(what: str, count: int, count_max: int) -> None:
    """Raise NotAllowedError when a list is too long."""
    if count > count_max:
        raise NotAllowedError(f"{what} has {count} members, more than {count_max}: send fewer")


def check_command(kind: int, content: Message) -> None:
    """Raise NotAllowedError when a field of a command exceeds its bound. Fields that are not set cost one question.

    Commands that come often cost nothing here: what handles them checks; see `AtUse`.
    """
    for path, bound in _CHECKED.get(kind, ()):
        holder = content
        for name in path[:-1]:
            if not holder.HasField(name):
                break
            holder = getattr(holder, name)
        else:
            _check(".".join(path), getattr(holder, path[-1]), bound)


def _check(what: str, value: object, bound: TextBound | ListBound | NumbersBound) -> None:
    if isinstance(bound, TextBound):
        check_text(what, cast("str | bytes", value), bound.bytes_max)
        return
    items = cast("Sequence[Message]", value)
    check_count(what, len(items), bound.count_max)
    if isinstance(bound, NumbersBound):
        return
    size = sum(item.ByteSize() for item in items)
    if size > bound.bytes_max:
        raise NotAllowedError(f"{what} has {size} bytes, more than {bound.bytes_max}: send less")


_CHECKED = {
    kind: tuple((tuple(path.split(".")), bound) for path, bound in rows.items() if not isinstance(bound, AtUse))
    for kind, rows in BOUNDS.items()
}
