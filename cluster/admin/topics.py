"""The commands of `topics`, without those of subscriptions, and the commands of properties."""

from typing import cast

from ...protocol.plain_values import is_list, is_text_map
from .arguments import (
    FORCE,
    NAMESPACE,
    TOPIC,
    Argument,
    ArgumentPlace,
    choice,
    message_id,
    moment,
    option,
    pairs,
    whole,
)
from .command import NAMESPACE_PATH, TOPIC_PATH, ArgumentValues, Command
from .deleting import OF_PARTITIONED_TOPIC, OF_TOPIC, asking
from .messages import message_at
from .output import Table
from .session import AdminSession

_NAMESPACE_PATH = f"{NAMESPACE_PATH}/properties"
_ONE_PATH = NAMESPACE_PATH + "/property/{property}"
_TOPIC_PATH = f"{TOPIC_PATH}/properties"
_KEY = Argument("property", "The name of the property.", ("-k", "--key"))
_PAIRS = Argument("properties", "As name=value, several with commas.", ("-p", "--property"), ArgumentPlace.BODY, pairs)

NAMESPACE_PROPERTIES = (
    Command("namespaces get-properties", "Show its properties.", f"GET {_NAMESPACE_PATH}", (NAMESPACE,)),
    Command("namespaces set-properties", "Add properties.", f"PUT {_NAMESPACE_PATH}", (NAMESPACE, _PAIRS)),
    Command("namespaces clear-properties", "Remove all properties.", f"DELETE {_NAMESPACE_PATH}", (NAMESPACE,)),
    Command("namespaces get-property", "Show one property.", f"GET {_ONE_PATH}", (NAMESPACE, _KEY)),
    Command(
        "namespaces set-property",
        "Set one property.",
        f"PUT {_ONE_PATH}/{{text}}",
        (NAMESPACE, _KEY, Argument("text", "Its text.", ("-v", "--value"))),
    ),
    Command(
        "namespaces remove-property",
        "Remove one property.",
        f"DELETE {_ONE_PATH}",
        (NAMESPACE, _KEY),
    ),
)
TOPIC_PROPERTIES = (
    Command("topics get-properties", "Show its properties.", f"GET {_TOPIC_PATH}", (TOPIC,)),
    Command("topics update-properties", "Add properties.", f"PUT {_TOPIC_PATH}", (TOPIC, _PAIRS)),
    Command(
        "topics remove-properties",
        "Remove a property.",
        f"DELETE {_TOPIC_PATH}",
        (TOPIC, option("key", "-k --key", "The name of the property.", required=True)),
    ),
)


DOMAINS = ("persistent", "non-persistent")
LOOKUP_PATH = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
PARTITIONS_PATH = f"{TOPIC_PATH}/partitions"

_FIGURES = (
    "state", "ownerBroker", "ownerEpoch", "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut",
    "msgInCounter", "msgOutCounter", "averageMsgSize", "storageSize", "backlogSize", "waitingPublishers",
    "deduplicationStatus", "lastPublishTimeStamp",
)  # fmt: skip
_SUBSCRIPTION_FIGURES = (
    "type", "msgBacklog", "msgDelayed", "unackedMessages", "msgRateOut", "msgRateRedeliver", "messageAckRate",
    "msgOutCounter", "totalMsgExpired",
)  # fmt: skip
_PRODUCER_FIGURES = ("producerName", "producerId", "accessMode", "msgRateIn", "msgThroughputIn", "address")
_STATS = Table(_FIGURES, {"subscriptions": _SUBSCRIPTION_FIGURES, "publishers": _PRODUCER_FIGURES})
_PARTITIONED_STATS = Table(
    _FIGURES,
    {
        "subscriptions": _SUBSCRIPTION_FIGURES,
        "publishers": _PRODUCER_FIGURES,
        "partitions": ("ownerBroker", "msgRateIn", "msgRateOut", "msgInCounter", "storageSize", "backlogSize"),
    },
)
_INTERNAL = Table(
    (),
    {
        "ledgers": ("ledgerId", "entries", "size", "closed"),
        "cursors": ("markDeletePosition", "readPosition", "messagesConsumedCounter"),
    },
)


def _of_both_domains(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """The lists of the domain that was given, or of both."""
    given = values.get("domain")
    found: list[object] = []
    for domain in DOMAINS if given is None else (str(given),):
        names = command.ask(session, values, domain=domain)
        found += names if is_list(names) else []
    return found


def _partitioned_lookup(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    found = command.ask(session, values, path=PARTITIONS_PATH)
    count = cast("int", found.get("partitions", 0)) if is_text_map(found) else 0
    local_name = command.request(values)[0]["topic"]
    names = [f"{local_name}-partition-{index}" for index in range(count)] or [local_name]
    return {name: _broker_of(command.ask(session, values, path=LOOKUP_PATH, topic=name)) for name in names}


def _broker_of(found: object) -> object:
    return found.get("brokerUrl") if is_text_map(found) else found


_DOMAIN = option(
    "domain", "-td --topic-domain", "Only topics of this domain.", ArgumentPlace.NOWHERE, read=choice(*DOMAINS)
)
_SYSTEM_TOO = option("includeSystemTopic", "-ist --include-system-topic", "System topics, too.", switch=True)
_PARTITIONS = Argument("partitions", "The number of partitions.", ("-p", "--partitions"), ArgumentPlace.BODY, whole)

_PROPERTIES = option(
    "properties", "-m --metadata", "Properties, as name=value, several with commas.", ArgumentPlace.BODY, read=pairs
)


def _topic(verb: str, help: str, route: str, *more: Argument, table: Table | None = None) -> Command:
    method, _, path = route.partition(" ")
    return Command(f"topics {verb}", help, f"{method} {TOPIC_PATH}{path}", (TOPIC, *more), table)


TOPICS = (
    Command(
        "topics list",
        "List a namespace's topics, partitions one by one.",
        "GET /admin/v2/{domain}/{tenant}/{namespace}",
        (NAMESPACE, _DOMAIN, _SYSTEM_TOO),
        run=_of_both_domains,
    ),
    Command(
        "topics list-partitioned-topics",
        "List a namespace's partitioned topics.",
        "GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned",
        (NAMESPACE, _DOMAIN),
        run=_of_both_domains,
    ),
    _topic("create", "Create a topic without partitions.", "PUT", _PROPERTIES),
    asking(_topic("delete", "Delete a topic without partitions.", "DELETE", FORCE), OF_TOPIC),
    _topic("create-partitioned-topic", "Create a partitioned topic.", "PUT /partitions", _PARTITIONS),
    _topic("update-partitioned-topic", "Add partitions to a topic.", "POST /partitions", _PARTITIONS),
    _topic("get-partitioned-topic-metadata", "Show how many partitions a topic has.", "GET /partitions"),
    asking(
        _topic("delete-partitioned-topic", "Delete a topic and its partitions.", "DELETE /partitions", FORCE),
        OF_PARTITIONED_TOPIC,
    ),
    _topic("stats", "Show rates, backlogs, producers and subscriptions.", "GET /stats", table=_STATS),
    _topic(
        "partitioned-stats",
        "Show the sums over all partitions.",
        "GET /partitioned-stats",
        option("perPartition", "--per-partition/--no-per-partition", "Each partition, too.", switch=True),
        table=_PARTITIONED_STATS,
    ),
    _topic("create-missed-partitions", "Store partitions that nobody has opened.", "POST /createMissedPartitions"),
    _topic("stats-internal", "Show ledgers and cursors.", "GET /internalStats", table=_INTERNAL),
    _topic("partitioned-stats-internal", "Show ledgers and cursors of partitions.", "GET /partitioned-internalStats"),
    _topic("info-internal", "Show what is stored of a topic.", "GET /internal-info"),
    _topic(
        "get-backlog-size",
        "Show how many bytes lie behind a message.",
        "PUT /backlogSize",
        Argument("messageId", "The message, as LEDGER:ENTRY.", ("-m", "--messageId"), ArgumentPlace.BODY, message_id),
    ),
    Command(
        "topics lookup", "Show the broker that owns a topic.", f"GET {LOOKUP_PATH}", (TOPIC,), Table(("brokerUrl",))
    ),
    Command(
        "topics partitioned-lookup",
        "Show the broker of each partition.",
        f"GET {LOOKUP_PATH}",
        (TOPIC,),
        run=_partitioned_lookup,
        routes=(("GET", PARTITIONS_PATH), ("GET", LOOKUP_PATH)),
    ),
    Command("topics bundle-range", "Show a topic's bundle.", f"GET {LOOKUP_PATH}/bundle", (TOPIC,)),
    _topic(
        "unload",
        "Move a topic to another broker.",
        "PUT /unload",
        option("destination", "-d --destinationBroker", "The broker that gets it.", outside="destinationBroker"),
    ),
    _topic("terminate", "Let a topic take no more messages, forever.", "POST /terminate"),
    _topic("partitioned-terminate", "The same for all partitions.", "POST /terminate/partitions"),
    _topic("truncate", "Acknowledge all backlogs, and delete what is free.", "DELETE /truncate"),
    _topic("trim-topic", "Delete the ledgers that nothing needs.", "POST /trim"),
    _topic("compact", "Begin to compact a topic.", "PUT /compaction"),
    _topic("compaction-status", "Show how the last compaction went.", "GET /compaction"),
    _topic("last-message-id", "Show the id of the last message.", "GET /lastMessageId"),
    Command(
        "topics get-message-id",
        "Show the id of the first message at a time, or later.",
        f"GET {TOPIC_PATH}/messageid/{{timestamp}}",
        (TOPIC, Argument("timestamp", "Time: ms since the epoch, or ISO 8601.", ("-d", "--datetime"), read=moment)),
    ),
    Command(
        "topics get-message-by-id",
        "Show the message with an id.",
        f"GET {TOPIC_PATH}/ledger/{{ledger}}/entry/{{entry}}",
        (
            TOPIC,
            Argument("ledger", "The ledger.", ("-l", "--ledgerId"), read=whole),
            Argument("entry", "The entry.", ("-e", "--entryId"), read=whole),
        ),
        run=message_at,
    ),
    Command(
        "topics examine-messages",
        "Show a message by its number.",
        f"GET {TOPIC_PATH}/examinemessage",
        (
            TOPIC,
            option(
                "initialPosition",
                "-i --initialPosition",
                "Count from earliest or latest.",
                read=choice("earliest", "latest"),
                default="latest",
            ),
            option("messagePosition", "-m --messagePosition", "The number, from 1.", read=whole, default="1"),
        ),
        run=message_at,
    ),
)
