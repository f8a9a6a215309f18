"""The options of a write through the data source, with the names that the Pulsar Spark connector has.

| option | meaning | default |
| --- | --- | --- |
| `service.url` | `pulsar://host:port` of brokers | required |
| `topic` | where all rows go, whatever they say | each row's `__topic` |
| `producerName` | what the write is called: each row is then stored once | none; in streams the query's id |
| `exactlyOnce` | whether each row of a stream is stored once | `true` with `producerName`, else `false` |
| `orderBy` | columns by which a task sorts its rows first, with commas | none |
| `schema` | `bytes`: `value` is the payload; `avro`, `json`: the columns are fields of a record | `bytes` |
| `recordName` | the name of that record in the schema | `topLevelRecord` |
| `pulsar.producer.compressionType` | `NONE`, `LZ4`, `ZLIB`, `ZSTD` or `SNAPPY` | `NONE` |
| `pulsar.producer.hashingScheme` | the hash of keys: `JavaStringHash` or `Murmur3_32Hash` | `JavaStringHash` |
| `pulsar.producer.batchingMaxMessages` | how many messages an entry has at most | 10,000 |
| `pulsar.producer.batchingMaxBytes` | about how many bytes an entry has at most | 512 KiB |
| `pulsar.producer.sendTimeoutMs` | how long an entry is tried | 120,000 |

Other options that begin with `pulsar.` have no meaning here.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyarrow brings no types.

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from ...bulk.writing.publisher import BYTES_MAX, MESSAGES_MAX, SEND_TIMEOUT_MS, WritePlan
from ...bulk.writing.typed_values import KINDS, RECORD_NAME, record_of, schema_info
from ...client.core.configuration import HashingScheme
from ...client.core.service_url import parse_service_url
from ...client.schemas.schema import SchemaInfo
from ...protocol.compression import CompressionType
from ...protocol.errors import InvalidConfiguration, NotAllowedError
from ...protocol.topics import TopicName
from .options import SERVICE_URL, TOPIC, flag, in_lower_case, number, refuse_unknown

if TYPE_CHECKING:
    import pyarrow as pa

BYTES = "bytes"
OF_PRODUCERS = "pulsar.producer."
KNOWN = {
    *(SERVICE_URL, "admin.url", TOPIC, "producername", "exactlyonce", "orderby", "schema", "recordname"),
    *("checkpointlocation", "path", "queryname"),  # Spark's own
}
Choice = TypeVar("Choice", bound=IntEnum)


def write_options(given: Mapping[str, str], query: str | None = None) -> WritePlan:
    """Read options, whose names may be in any case.

    Args:
        given: The options.
        query: Id of the streaming query; None for a write that is no stream.

    Raises:
        InvalidConfiguration: For a value that cannot be meant.
        InvalidUrl: If `service.url` is none.
        InvalidTopicName: If `topic` is not a topic name.
        NotAllowedError: If `topic` is not persistent.
    """
    found = in_lower_case(given)
    refuse_unknown(found, KNOWN, "a write has no option")
    url = found.get(SERVICE_URL, "")
    if not url:
        raise InvalidConfiguration("the option service.url is missing: pulsar://host:port of brokers")
    parse_service_url(url)
    return WritePlan(
        url,
        _topic(found.get(TOPIC)),
        _name(found, query),
        _choice(found, "compressionType", CompressionType.NONE),
        _choice(found, "hashingScheme", HashingScheme.JavaStringHash),
        number(found, f"{OF_PRODUCERS}batchingMaxMessages", MESSAGES_MAX, 1),
        number(found, f"{OF_PRODUCERS}batchingMaxBytes", BYTES_MAX, 1),
        number(found, f"{OF_PRODUCERS}sendTimeoutMs", SEND_TIMEOUT_MS, 1),
        tuple(name.strip() for name in found["orderby"].split(",")) if found.get("orderby") else (),
    )


def typed_as(given: Mapping[str, str], rows: "pa.Schema") -> SchemaInfo | None:
    """The schema of the records that rows are; None if they are payloads. Raises InvalidConfiguration."""
    found = in_lower_case(given)
    kind = found.get("schema", BYTES).lower()
    if kind == BYTES:
        return None
    if kind not in KINDS:
        raise InvalidConfiguration(f"the option schema must be {BYTES}, {' or '.join(KINDS)}, not {kind!r:.100}")
    return schema_info(KINDS[kind], record_of(rows), found.get("recordname") or RECORD_NAME)


def _topic(given: str | None) -> str | None:
    if not given:
        return None
    topic = TopicName.parse(given)
    if not topic.persistent:
        raise NotAllowedError(f"{given} stores no messages: only persistent topics can be written in bulk")
    return topic.full


def _name(found: Mapping[str, str], query: str | None) -> str | None:
    """What the write is called if each row is to be stored once."""
    name = found.get("producername") or None
    if not flag(found, "exactlyOnce", name is not None):
        if name is not None:
            raise InvalidConfiguration("exactlyOnce is false, and producerName is given: leave one of them out")
        return None
    if name is None and query is None:
        raise InvalidConfiguration("exactlyOnce needs producerName, which says what this result is called")
    return name or query


def _choice(found: Mapping[str, str], name: str, otherwise: Choice) -> Choice:
    given = found.get(f"{OF_PRODUCERS}{name}".lower())
    if given is None:
        return otherwise
    members = {member.name.lower(): member for member in type(otherwise)}
    if given.lower() not in members:
        said = ", ".join(member.name for member in members.values())
        raise InvalidConfiguration(f"the option {OF_PRODUCERS}{name} must be one of {said}, not {given!r:.100}")
    return members[given.lower()]
