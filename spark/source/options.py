"""The options of the data source, with the names that the Pulsar Spark connector has.

| option | meaning | default |
| --- | --- | --- |
| `admin.url` | `http://host:port` of the cluster's admin HTTP | required |
| `service.url` | `pulsar://host:port` of brokers, for writing | |
| `topic`, `topics`, `topicsPattern` | a topic, several with commas, or a regular expression | one of them |
| `startingOffsets` | `earliest`, `latest`, or JSON: an offset for each topic | `earliest`, in streams `latest` |
| `endingOffsets` | the same for the end of a batch | `latest` |
| `startingTime`, `endingTime` | milliseconds since the epoch, in place of offsets | |
| `failOnDataLoss` | whether a read ends with an error when messages that it should give are gone | `true` |
| `columns` | the columns of the frame, with commas between them | all |
| `schema` | `auto`: the columns of the topic's newest schema; `bytes`: payloads as they are | `auto` |
| `schemaVersion` | the number of the schema's version whose columns the frame has | the newest |
| `isReadCompacted` | read only the last message of each key of what is compacted | `false` |
| `maxBytesPerSplit` | about how many bytes of a topic one Spark task reads | 64 MiB |
| `maxBytesPerTrigger`, `maxMessagesPerTrigger` | about how much a micro-batch reads | all |
| `predefinedSubscription` | a subscription whose cursor follows a streaming query | none |
| `pinTtlSeconds` | how long planned ledgers are kept from trimming when nobody reads on | 600 |
| `privateKeyPath` | a file with a private key, or a directory of files `NAME.pem`, on the driver | none |
| `cryptoFailureAction` | `FAIL`, `DISCARD` or `CONSUME`: what becomes of a message that cannot be decrypted | `FAIL` |
| `minPartitions` | how many tasks a read has at least, if it has as many entries | 1 |

The connectors for Spark and Flink have no option for keys. These two have the names of Pulsar's client for JavaScript.

An offset in JSON is a serialized message id, as a list of its bytes (as the Pulsar connector writes it) or in
hexadecimal.
"""

# pyarrow brings no types.
# pyright: reportUnknownVariableType=false

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ...bulk.decryption import action_named
from ...bulk.planner import PIN_TTL_S
from ...bulk.read_plan import TASK_SIZE_BYTES, PointInTopic
from ...bulk.typed.choice import AUTO, BYTES, SchemaChoice, parse_choice, row_shape
from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_list, is_text_map
from ...protocol.topics import TopicName

ADMIN_URL = "admin.url"
SERVICE_URL = "service.url"
TOPIC, TOPICS, PATTERN = "topic", "topics", "topicspattern"
PREFIX = "pulsar."
"""The connector's options of clients and readers begin so. They have no meaning here."""
KNOWN = {
    *(ADMIN_URL, SERVICE_URL, TOPIC, TOPICS, PATTERN, "startingoffsets", "endingoffsets", "startingtime", "endingtime"),
    *("failondataloss", "columns", "isreadcompacted", "maxbytespersplit", "maxbytespertrigger"),
    *("minpartitions", "path", "pinttlseconds", "predefinedsubscription", "privatekeypath", "cryptofailureaction"),
    *("maxmessagespertrigger", "schema", "schemaversion"),
}
SPLIT_SIZE_LEAST_BYTES = 64 << 10

Offsets = PointInTopic | dict[str, PointInTopic]
"""One for all topics, or one for each of these: full names of topics or partitions."""


class ReadOptions(NamedTuple):
    """What a read is asked for."""

    admin_url: str
    topics: tuple[str, ...]
    """Empty with a pattern."""
    pattern: str | None
    starting: Offsets
    ending: Offsets
    fail_on_data_loss: bool
    columns: tuple[str, ...] | None
    """None: all."""
    schema: SchemaChoice
    compacted: bool
    split_bytes: int
    partitions_min: int
    trigger_bytes: int | None
    trigger_messages: int | None
    subscription: str | None
    pin_ttl_s: float
    private_key_path: str | None
    crypto_failure_action: str


def read_options(given: Mapping[str, str], *, streaming: bool = False) -> ReadOptions:
    """Read options, whose names may be in any case. Raises InvalidConfiguration for a value that cannot be meant."""
    found = in_lower_case(given)
    refuse_unknown(found, KNOWN, "there is no option")
    admin_url = found.get(ADMIN_URL, "")
    if not admin_url:
        raise InvalidConfiguration("the option admin.url is missing: http://host:port of the cluster's admin HTTP")
    topics, pattern = _topics(found)
    columns = tuple(name.strip() for name in found["columns"].split(",")) if "columns" in found else None
    schema = _schema(found)
    if schema is None:
        row_shape(columns)  # else the columns are checked when the topic's schema is known
    return ReadOptions(
        admin_url,
        topics,
        pattern,
        _bound(found, "starting", "latest" if streaming else "earliest"),
        _bound(found, "ending", "latest"),
        flag(found, "failOnDataLoss", True),
        columns,
        schema,
        flag(found, "isReadCompacted", False),
        number(found, "maxBytesPerSplit", TASK_SIZE_BYTES, SPLIT_SIZE_LEAST_BYTES),
        number(found, "minPartitions", 1, 1),
        number(found, "maxBytesPerTrigger", 1, 1) if "maxbytespertrigger" in found else None,
        number(found, "maxMessagesPerTrigger", 1, 1) if "maxmessagespertrigger" in found else None,
        found.get("predefinedsubscription"),
        float(number(found, "pinTtlSeconds", int(PIN_TTL_S), 1)),
        found.get("privatekeypath") or None,
        action_named(found.get("cryptofailureaction", "FAIL")).name,
    )


def _schema(found: Mapping[str, str]) -> SchemaChoice:
    given = found.get("schema", AUTO).lower()
    if given not in (AUTO, BYTES):
        raise InvalidConfiguration(f"the option schema must be {AUTO} or {BYTES}, not {given!r:.100}")
    if "schemaversion" not in found:
        return parse_choice(given)
    if given == BYTES:
        raise InvalidConfiguration("give schema=bytes or schemaVersion, not both")
    return number(found, "schemaVersion", 0, 0)


def _topics(found: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    named = [name for name in (TOPIC, TOPICS, PATTERN) if found.get(name)]
    if len(named) != 1:
        said = "none" if not named else ", ".join(named)
        raise InvalidConfiguration(f"one of the options topic, topics and topicsPattern must be given, not {said}")
    if named == [PATTERN]:
        return (), found[PATTERN]
    parts = [found[TOPIC]] if named == [TOPIC] else [name.strip() for name in found[TOPICS].split(",")]
    topics = [TopicName.parse(name).full for name in parts if name]
    if len({*topics}) < len(topics):
        raise InvalidConfiguration(f"a topic is named twice in {found[TOPICS]!r:.200}")
    return tuple(topics), None


def _bound(found: Mapping[str, str], side: str, otherwise: str) -> Offsets:
    offsets, time_ms = found.get(f"{side}offsets"), found.get(f"{side}time")
    if offsets is not None and time_ms is not None:
        raise InvalidConfiguration(f"give {side}Offsets or {side}Time, not both")
    if time_ms is not None:
        return number(found, f"{side}Time", 0, 0)
    text = otherwise if offsets is None else offsets
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{side}Offsets must be earliest, latest or JSON: {error}") from error
    if not is_text_map(given):
        raise InvalidConfiguration(f"{side}Offsets must be an object: an offset for each topic")
    return {TopicName.parse(topic).full: _offset(side, topic, value) for topic, value in given.items()}


def _offset(side: str, topic: str, value: object) -> PointInTopic:
    if value in ("earliest", "latest"):
        return str(value)
    try:
        if isinstance(value, str):
            return bytes.fromhex(value)
        if is_list(value):  # Java's bytes have a sign
            return bytes(number % 256 for number in value if type(number) is int and -128 <= number <= 255)
    except ValueError as error:
        raise InvalidConfiguration(f"{side}Offsets of {topic}: {error}") from error
    raise InvalidConfiguration(f"{side}Offsets of {topic} must be a message id in hexadecimal or as a list of bytes")


def in_lower_case(given: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in lower case: users may write them in any."""
    return {name.lower(): value.strip() for name, value in given.items()}


def refuse_unknown(found: Mapping[str, str], known: Collection[str], what: str) -> None:
    """Raise InvalidConfiguration, which begins with `what`, for an option that is neither known nor a client's."""
    unknown = sorted(name for name in found if name not in known and not name.startswith(PREFIX))
    if unknown:
        raise InvalidConfiguration(f"{what} {unknown[0]!r}: see docs/guides/spark.md for those that there are")


def flag(found: Mapping[str, str], name: str, otherwise: bool) -> bool:
    """An option that is true or false; `found` has the names of options in lower case. Raises InvalidConfiguration."""
    value = found.get(name.lower(), str(otherwise)).lower()
    if value not in ("true", "false"):
        raise InvalidConfiguration(f"the option {name} must be true or false, not {value!r:.100}")
    return value == "true"


def number(found: Mapping[str, str], name: str, otherwise: int, least: int) -> int:
    """An option that is a whole number; `found` as in `flag`. Raises InvalidConfiguration."""
    text = found.get(name.lower(), str(otherwise))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise InvalidConfiguration(f"the option {name} must be a whole number of {least} or more, not {text!r:.100}")
    return int(text)
