"""Commands that delete something, or acknowledge what nobody has read: they ask first, and say what went.

Before such a command acts, it looks at what would be lost. If that is something, it asks in a terminal. Without a
terminal nobody can answer, so it refuses, and names the option `--yes`. With `--yes` or `--force` it does not ask.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import cast

import typer

from ...protocol.errors import InvalidConfiguration
from ...protocol.plain_values import is_list, is_text_map
from .arguments import ArgumentPlace, option
from .command import NAMESPACE_PATH, TOPIC_PATH, ArgumentValues, Command
from .session import AdminSession, Refused

YES = option("yes", "-y --yes", "Do not ask.", ArgumentPlace.NOWHERE, switch=True)
STATS_PATH = f"{TOPIC_PATH}/stats"
PARTITIONED_STATS_PATH = f"{TOPIC_PATH}/partitioned-stats"
LIST_PATH = f"{NAMESPACE_PATH}/topics"

Survey = Callable[[AdminSession, Command, ArgumentValues], Mapping[str, int]]
"""What a command would take away: numbers by what they count."""


@dataclass(frozen=True)
class Losses:
    """How a command looks at what it takes away, and which of the numbers are worth a question."""

    look: Survey
    routes: tuple[tuple[str, str], ...]
    matter: frozenset[str]


def asking(command: Command, losses: Losses, done: str = "deleted") -> Command:
    """The command, which now asks first, and answers with what went. `done` is the word for that."""
    inner = command.run

    def run(session: AdminSession, running: Command, values: ArgumentValues) -> object:
        lost = losses.look(session, running, values)
        if any(lost.get(name) for name in losses.matter) and not (values.get("yes") or values.get("force")):
            _ask(f"{running.noun} {running.verb}", lost)
        answer = inner(session, running, values) if inner is not None else running.ask(session, values)
        return answer if answer is not None else {done: _name(running.request(values)[0]), **lost}

    routes = dict.fromkeys((*command.asked, *losses.routes))
    return replace(command, run=run, routes=tuple(routes), arguments=(*command.arguments, YES))


def _name(parts: Mapping[str, str]) -> str:
    """What a command is about, from the parts of its path."""
    name = f"{parts['tenant']}/{parts['namespace']}"
    if "topic" in parts:
        name = f"{parts['domain']}://{name}/{parts['topic']}"
    subscription = parts.get("subscription", parts.get("subscription_name"))
    return name if subscription is None else f"{subscription} of {name}"


def _ask(verb: str, lost: Mapping[str, int]) -> None:
    """Raises InvalidConfiguration without a terminal, and typer.Abort if the answer is not yes."""
    shown = ", ".join(f"{name}: {count:,}" for name, count in lost.items() if count)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidConfiguration(f"{verb} takes away what is there ({shown}): pass --yes to do it without a question")
    typer.confirm(f"{verb} takes away what is there ({shown}). Go on?", abort=True, err=True)


# -- what is lost ------------------------------------------------------------------------------------------------


def _stats(session: AdminSession, command: Command, values: ArgumentValues, path: str) -> Mapping[str, object]:
    """Statistics of a topic; empty if there is no such topic, which the command itself then says."""
    try:
        found = command.ask(session, values, method="GET", path=path)
    except Refused as error:
        if error.details["status"] != HTTPStatus.NOT_FOUND:
            raise
        return {}
    return found if is_text_map(found) else {}


def _of_topic(path: str) -> Survey:
    def look(session: AdminSession, command: Command, values: ArgumentValues) -> Mapping[str, int]:
        stats = _stats(session, command, values, path)
        if not stats:
            return {}
        subscriptions = _subscriptions(stats)
        return {
            "subscriptions": len(subscriptions),
            "entries of backlog": sum(_number(one, "msgBacklog") for one in subscriptions.values()),
            "stored bytes": _number(stats, "storageSize"),
        }

    return look


def _of_subscription(session: AdminSession, command: Command, values: ArgumentValues) -> Mapping[str, int]:
    """Those of a topic, or of all partitions of one."""
    for path in (STATS_PATH, PARTITIONED_STATS_PATH):
        found = _subscriptions(_stats(session, command, values, path)).get(str(values.get("subscription")))
        if found is not None:
            return {"entries of backlog": _number(found, "msgBacklog")}
    return {}


def _of_namespace(session: AdminSession, command: Command, values: ArgumentValues) -> Mapping[str, int]:
    try:
        found = session.ask("GET", LIST_PATH, command.request(values)[0], {"mode": "ALL"}).value()
    except Refused as error:
        if error.details["status"] != HTTPStatus.NOT_FOUND:
            raise
        return {}
    return {"topics": len(found) if is_list(found) else 0}


def _of_namespace_backlog(session: AdminSession, command: Command, values: ArgumentValues) -> Mapping[str, int]:
    """How many topics it is about: to count the backlogs would take a request for each topic."""
    topics = _of_namespace(session, command, values).get("topics", 0)
    return {"backlogs of topics": topics} if topics else {}


def _subscriptions(stats: Mapping[str, object]) -> Mapping[str, Mapping[str, object]]:
    found = stats.get("subscriptions")
    return cast("Mapping[str, Mapping[str, object]]", found) if is_text_map(found) else {}


def _number(figures: Mapping[str, object], name: str) -> int:
    found = figures.get(name)
    return found if isinstance(found, int) else 0


_WORTH_A_QUESTION = frozenset({"subscriptions", "entries of backlog", "topics", "backlogs of topics"})

OF_TOPIC = Losses(_of_topic(STATS_PATH), (("GET", STATS_PATH),), _WORTH_A_QUESTION)
OF_PARTITIONED_TOPIC = Losses(_of_topic(PARTITIONED_STATS_PATH), (("GET", PARTITIONED_STATS_PATH),), _WORTH_A_QUESTION)
OF_SUBSCRIPTION = Losses(_of_subscription, (("GET", STATS_PATH), ("GET", PARTITIONED_STATS_PATH)), _WORTH_A_QUESTION)
OF_NAMESPACE = Losses(_of_namespace, (("GET", LIST_PATH),), frozenset())
"""There is no question: the admin refuses to delete a namespace with topics, unless `--force` is given."""
OF_NAMESPACE_BACKLOG = Losses(_of_namespace_backlog, (("GET", LIST_PATH),), _WORTH_A_QUESTION)
