"""Commands of subscriptions: verbs of `topics` as in Pulsar, and a noun of their own."""

import time

from ...protocol.errors import InvalidConfiguration
from .arguments import (
    FORCE,
    SUBSCRIPTION,
    TOPIC,
    Argument,
    ArgumentPlace,
    message_id,
    milliseconds,
    option,
    pairs,
    position,
    seconds,
    whole,
)
from .command import SUBSCRIPTION_PATH, TOPIC_PATH, ArgumentValues, Command
from .deleting import OF_SUBSCRIPTION, asking
from .messages import peeked
from .session import AdminSession

RESET_PATH = SUBSCRIPTION_PATH + "/resetcursor"
RESET_TIME_PATH = RESET_PATH + "/{timestamp}"


def _reset(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """To a message id, or to a time that lies so long ago."""
    age_ms = values.get("age")
    if (age_ms is None) == (values.get("messageId") is None):
        raise InvalidConfiguration("pass either --time or --messageId")
    if age_ms is None:
        return command.ask(session, values)
    time_ms = max(0, time.time_ns() // 1_000_000 - int(str(age_ms)))
    return command.ask(session, values, path=RESET_TIME_PATH, timestamp=str(time_ms))


_AGE = Argument("seconds", "Age: seconds, or 10m, 3h, 2d.", ("-t", "--expireTime"), read=seconds)
_COUNT = Argument("count", "How many messages.", ("-n", "--count"), ArgumentPlace.NOWHERE, whole, "1", required=False)

_TABLE = (
    Command("topics subscriptions", "List a topic's subscriptions.", f"GET {TOPIC_PATH}/subscriptions", (TOPIC,)),
    Command(
        "topics create-subscription",
        "Create a subscription.",
        f"PUT {SUBSCRIPTION_PATH}",
        (
            TOPIC,
            SUBSCRIPTION,
            option(
                "messageId",
                "-m --messageId",
                "latest, earliest, or LEDGER:ENTRY.",
                ArgumentPlace.BODY,
                read=position,
                default="latest",
            ),
        ),
    ),
    asking(
        Command(
            "topics unsubscribe", "Delete a subscription.", f"DELETE {SUBSCRIPTION_PATH}", (TOPIC, SUBSCRIPTION, FORCE)
        ),
        OF_SUBSCRIPTION,
    ),
    Command(
        "topics analyze-backlog",
        "Read a subscription's backlog, and count its messages.",
        f"POST {SUBSCRIPTION_PATH}/analyzeBacklog",
        (
            TOPIC,
            SUBSCRIPTION,
            option("messageId", "-p --position", "Begin at this LEDGER:ENTRY.", ArgumentPlace.BODY, read=position),
        ),
    ),
    Command(
        "topics reset-cursor",
        "Move a subscription to a message, or back in time.",
        f"POST {RESET_PATH}",
        (
            TOPIC,
            SUBSCRIPTION,
            option(
                "age", "-t --time", "How far back: seconds, or 10m, 3h, 2d.", ArgumentPlace.NOWHERE, read=milliseconds
            ),
            option("messageId", "-m --messageId", "The message, as LEDGER:ENTRY.", ArgumentPlace.BODY, read=message_id),
        ),
        run=_reset,
        routes=(("POST", RESET_PATH), ("POST", RESET_TIME_PATH)),
    ),
    Command(
        "topics skip",
        "Acknowledge the next messages of a subscription.",
        f"POST {SUBSCRIPTION_PATH}/skip/{{messages}}",
        (TOPIC, SUBSCRIPTION, Argument("messages", "How many.", ("-n", "--count"), read=whole)),
    ),
    Command(
        "topics clear-backlog",
        "Acknowledge all messages of a subscription.",
        f"POST {SUBSCRIPTION_PATH}/skip_all",
        (TOPIC, SUBSCRIPTION),
    ),
    Command(
        "topics expire-messages",
        "Acknowledge messages over an age, at one subscription.",
        f"POST {SUBSCRIPTION_PATH}/expireMessages/{{seconds}}",
        (TOPIC, SUBSCRIPTION, _AGE),
    ),
    Command(
        "topics expire-messages-all-subscriptions",
        "The same at all subscriptions.",
        f"POST {TOPIC_PATH}/all_subscription/expireMessages/{{seconds}}",
        (TOPIC, _AGE),
    ),
    Command(
        "topics get-subscription-properties",
        "Show the properties of a subscription.",
        f"GET {SUBSCRIPTION_PATH}/properties",
        (TOPIC, SUBSCRIPTION),
    ),
    Command(
        "topics update-subscription-properties",
        "Replace the properties of a subscription.",
        f"PUT {SUBSCRIPTION_PATH}/properties",
        (
            TOPIC,
            SUBSCRIPTION,
            option("properties", "-p --property", "NAME=VALUE, several with commas.", ArgumentPlace.BODY, read=pairs),
            option("clear", "-c --clear", "Leave none: do not pass --property.", ArgumentPlace.NOWHERE, switch=True),
        ),
    ),
    Command(
        "topics peek-messages",
        "Show the next messages of a subscription, and leave them there.",
        f"GET {SUBSCRIPTION_PATH}/position/{{position}}",
        (TOPIC, SUBSCRIPTION, _COUNT),
        run=peeked,
    ),
)
_OTHER_VERBS = {"subscriptions": "list", "create-subscription": "create", "unsubscribe": "delete"}

SUBSCRIPTIONS = (
    *_TABLE,
    *(command.named("subscriptions", _OTHER_VERBS.get(command.verb, "")) for command in _TABLE),
)
