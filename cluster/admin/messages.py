"""Commands that show single messages. The admin answers with the payload, and with headers for everything else."""

import json
from http import HTTPStatus

from .command import ArgumentValues, Command
from .session import AdminAnswer, AdminSession, Refused

PREFIX = "X-Pulsar-"
SHOWN = ("Message-ID", "publish-time", "event-time", "partition-key", "producer-name", "sequence-id")
PEEKED_MAX = 10_000


def message_at(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    parts, query, _ = command.request(values)
    return [_shown(session.ask(command.method, command.path, parts, query))]


def peeked(session: AdminSession, command: Command, values: ArgumentValues) -> object:
    """The first messages of a backlog, as many as were asked for, or as there are. Raises Refused if there is none."""
    parts, query, _ = command.request(values)
    found: list[object] = []
    while len(found) < min(int(str(values["count"])), PEEKED_MAX):
        place = {**parts, "position": str(len(found) + 1)}
        try:
            found.append(_shown(session.ask(command.method, command.path, place, query)))
        except Refused as error:
            if error.details["status"] != HTTPStatus.NOT_FOUND or not found:
                raise
            break  # the backlog has no more
    return found


def _shown(answer: AdminAnswer) -> dict[str, object]:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    found: dict[str, object] = {name: headers[key] for name in SHOWN if (key := f"{PREFIX}{name}".lower()) in headers}
    properties = json.loads(headers.get(f"{PREFIX}PROPERTY".lower(), "{}"))
    batch = headers.get(f"{PREFIX}num-batch-message".lower())
    if batch is not None:
        found["messages of the batch"] = int(batch)
    return {**found, "properties": json.dumps(properties), "content": answer.body.decode(errors="backslashreplace")}
