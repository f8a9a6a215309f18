"""Keys of the metadata store: who keeps what where.

| key | value |
| --- | --- |
| `cluster` | the cluster's identity, created once |
| `coordinator/epoch` | the epoch that the active coordinator raised |
| `coordinator/lease` | what the coordinator renews all the time, for a deputy to see that it is there |
| `counters/<name>` | first number not yet given out |
| `bookies/<id>` | cookie of a bookie |
| `ledgers/<20 digits>` | one ledger: ensemble, quorums, fragments, state |
| `managed/<topic path>` | chain of ledgers of a topic |
| `cursors/<topic path>/<subscription>` | one durable cursor |
| `topics/<topic path>` | one topic, partitioned or plain, with its number of partitions |
| `assignments/<topic path>` | format 1 only: the broker that owned a partition, with epoch |
| `slots/<2 digits>` | one page of slots: the broker that owns each, with epoch |
| `tenants/<tenant>`, `namespaces/<tenant>/<namespace>` | policies |
| `topic-policies/<topic path>` | policies of a topic, partitioned or plain |
| `desired/state` | which brokers and bookies should run, and which are being drained |
| `desired/settings` | settings that operators chose (see `stored_settings`) |
| `restored/ledgers` | ledger ids that were in use when the metadata was restored from an older state |
| `restored/from` | the backup from which the metadata was restored |
| `moved/to`, `moved/from` | a move of the metadata to another database (see `moved_store`) |
| `moved/probe` | what shows that two URLs lead to the same database (see `cluster.new_address`) |
| `pins/<topic path>/<pin>` | ledgers that a planned read keeps alive |
| `schemas/<tenant>/<namespace>/<local name>` | the versions of a topic's schema |

A topic path is `TopicName.path`: `persistent/<tenant>/<namespace>/<percent-encoded local name>`. Free text inside a key
is percent-encoded. So a slash always separates, and a prefix that ends in a slash finds exactly the keys below it.
Ledger ids have leading zeros, so the order of keys is the order of ids.

Every prefix here has its entry in the table of record kinds (see `record_kinds`), which says which ledgers a record
names. A unit test compares the two.
"""

from urllib.parse import quote, unquote

from ...protocol.errors import ProtocolError

CLUSTER = "cluster"
COORDINATOR_EPOCH = "coordinator/epoch"
COORDINATOR_LEASE = "coordinator/lease"
RESTORED_LEDGERS = "restored/ledgers"
RESTORED_FROM = "restored/from"
MOVED_TO = "moved/to"
MOVED_FROM = "moved/from"
MOVED_PROBE = "moved/probe"
DESIRED_STATE = "desired/state"
STORED_SETTINGS = "desired/settings"

COUNTERS_PREFIX = "counters/"
BOOKIES_PREFIX = "bookies/"
LEDGERS_PREFIX = "ledgers/"
MANAGED_PREFIX = "managed/"
CURSORS_PREFIX = "cursors/"
TOPICS_PREFIX = "topics/"
ASSIGNMENTS_PREFIX = "assignments/"
SLOTS_PREFIX = "slots/"
TENANTS_PREFIX = "tenants/"
NAMESPACES_PREFIX = "namespaces/"
PINS_PREFIX = "pins/"
SCHEMAS_PREFIX = "schemas/"
TOPIC_POLICIES_PREFIX = "topic-policies/"

LEDGER_COUNTER = "ledger"
PRODUCER_COUNTER = "producer"

_LEDGER_DIGITS = 20
_LEDGER_ID_MAX = (1 << 63) - 1


def counter(name: str) -> str:
    """The key of a durable counter."""
    return f"{COUNTERS_PREFIX}{encode_part(name)}"


def bookie(bookie_id: str) -> str:
    """The key of a bookie's cookie."""
    return f"{BOOKIES_PREFIX}{encode_part(bookie_id)}"


def bookie_id_of(key: str) -> str:
    """The bookie id in a key of `bookie`; ProtocolError for another key."""
    return decode_part(_below(key, BOOKIES_PREFIX))


def ledger(ledger_id: int) -> str:
    """The key of a ledger's metadata."""
    if ledger_id < 0:
        raise ProtocolError("the ledger id is negative", ledger_id=ledger_id)
    return f"{LEDGERS_PREFIX}{ledger_id:0{_LEDGER_DIGITS}d}"


def ledger_id_of(key: str) -> int:
    """The ledger id in a key of `ledger`; ProtocolError for another key."""
    digits = _below(key, LEDGERS_PREFIX)
    if len(digits) != _LEDGER_DIGITS or not (digits.isascii() and digits.isdigit()) or int(digits) > _LEDGER_ID_MAX:
        raise ProtocolError("the key is not the key of a ledger", key=key)
    return int(digits)


def managed_ledger(topic_path: str) -> str:
    """The key of a topic's chain of ledgers."""
    return f"{MANAGED_PREFIX}{topic_path}"


def cursor(topic_path: str, subscription: str) -> str:
    """The key of a durable cursor."""
    return f"{cursors_prefix(topic_path)}{encode_part(subscription)}"


def cursors_prefix(topic_path: str) -> str:
    return f"{CURSORS_PREFIX}{topic_path}/"


def subscription_of(key: str) -> str:
    """The subscription in a key of `cursor`; ProtocolError for another key."""
    return decode_part(_below(key, CURSORS_PREFIX).rpartition("/")[2])


def topic(topic_path: str) -> str:
    """The key of a topic: the path of the partitioned topic or of the plain one, never of a partition."""
    return f"{TOPICS_PREFIX}{topic_path}"


def topics_prefix(namespace: str, domain: str = "persistent") -> str:
    """The prefix of all topics of a namespace given as `tenant/namespace`."""
    return f"{TOPICS_PREFIX}{domain}/{namespace}/"


def slot_page(number: int) -> str:
    return f"{SLOTS_PREFIX}{number:02d}"


def tenant(name: str) -> str:
    return f"{TENANTS_PREFIX}{encode_part(name)}"


def namespace(name: str) -> str:
    """The key of a namespace given as `tenant/namespace`."""
    return f"{NAMESPACES_PREFIX}{name}"


def namespaces_prefix(tenant_name: str) -> str:
    return f"{NAMESPACES_PREFIX}{tenant_name}/"


def pin(topic_path: str, pin_id: str) -> str:
    """The key of a pin of a topic's ledgers."""
    return f"{pins_prefix(topic_path)}{encode_part(pin_id)}"


def pins_prefix(topic_path: str) -> str:
    return f"{PINS_PREFIX}{topic_path}/"


def schema(topic_path: str) -> str:
    """The key of a topic's schema: the path of the partitioned topic or of the plain one, never of a partition.

    As in Pulsar, a persistent and a non-persistent topic of the same name share it.
    """
    return f"{SCHEMAS_PREFIX}{topic_path.partition('/')[2]}"


def schemas_prefix(namespace_name: str) -> str:
    """The prefix of all schemas of a namespace given as `tenant/namespace`."""
    return f"{SCHEMAS_PREFIX}{namespace_name}/"


def topic_policies(topic_path: str) -> str:
    """The key of a topic's policies: the path of the partitioned topic or of the plain one, never of a partition."""
    return f"{TOPIC_POLICIES_PREFIX}{topic_path}"


def encode_part(text: str) -> str:
    """Free text as one part of a key: percent-encoded, slashes included."""
    return quote(text, safe="")


def decode_part(text: str) -> str:
    """What `encode_part` was given."""
    return unquote(text)


def _below(key: str, prefix: str) -> str:
    if not key.startswith(prefix) or len(key) == len(prefix):
        raise ProtocolError("the key has another prefix", key=key, expected_prefix=prefix)
    return key[len(prefix) :]
