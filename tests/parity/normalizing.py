"""What two servers cannot say alike becomes a symbol: ids of ledgers, times, addresses, rates, generated names.

Everything else stays as it was said. The first ledger that a transcript shows is `L1`, the next `L2`. A name that a
server or client made up is `generated-1`, `generated-2`. A time or an address says only whether it is set.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message as ProtobufMessage

from magnetar.protocol.pulsar_pb2 import MessageIdData, ServerError

LONG_MAX = (1 << 63) - 1
LONG_TEXT = 120

_ADDRESS = re.compile(r"/?127\.0\.0\.1:\d+|/?\[?::1\]?:\d+|localhost:\d+")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|[+-]\d\d:?\d\d)?")
_GENERATED = re.compile(r"\b(?:standalone|magnetar|parity)-\d+-\d+\b")
_RANGE = re.compile(r"\d+:-?\d+")
_POSITION = re.compile(r"^(\d+):(-?\d+)(.*)$")

_TIME_KEY = re.compile(r"(Timestamp|Time|Since|TimeStamp|Ms)$|^timestamp$")
_RATE_KEY = re.compile(r"^(msgRate|msgThroughput|messageAckRate|chunkedMessageRate)|^averageMsgSize$")
_PLACE_KEYS = {"address", "clientVersion", "ownerBroker", "brokerUrl", "brokerUrlTls", "httpUrl", "httpUrlTls"}
_PLACE_KEYS |= {"nativeUrl", "serviceUrl", "brokerServiceUrl", "serviceUrlTls", "brokerServiceUrlTls"}
_LEDGER_KEYS = {"ledgerId", "currentLedgerId"}

NOT_COMPARED = {"request_id", "server_version", "publish_time"}
NOT_COMPARED |= {"msgRateOut", "msgThroughputOut", "messageAckRate", "msgRateRedeliver"}
"""Fields of commands that say nothing, and rates."""
TEXT_FIELDS = {"message", "error_message"}
"""Fields of commands with an error's text. It is noted, and not compared: our sentences are our own."""


class Names:
    """Gives symbols, by the order in which they are first asked for."""

    def __init__(self) -> None:
        self._ledgers: dict[int, str] = {}
        self._learned: dict[str, str] = {}
        self._generated = 0

    def learn(self, text: str, symbol: str) -> None:
        """From now on `text` is shown as `symbol`."""
        self._learned[text] = symbol

    def learn_generated(self, text: str) -> None:
        """A name that a server or a client made up."""
        if text and text not in self._learned:
            self._generated += 1
            self._learned[text] = f"<generated-{self._generated}>"

    def ledger(self, ledger_id: int) -> str:
        """Symbol of a ledger. Ids below zero and the greatest of all have a meaning, and stay."""
        if ledger_id < 0:
            return str(ledger_id)
        if ledger_id in (LONG_MAX, (1 << 64) - 1):
            return "max" if ledger_id == LONG_MAX else "-1"
        return self._ledgers.setdefault(ledger_id, f"L{len(self._ledgers) + 1}")

    def ledger_of(self, symbol: str) -> int:
        """The id of a ledger that has a symbol."""
        return next(ledger_id for ledger_id, known in self._ledgers.items() if known == symbol)

    def text(self, text: str) -> str:
        """A text with everything replaced that is known to change."""
        for known in sorted(self._learned, key=len, reverse=True):
            text = text.replace(known, self._learned[known])
        for made in _GENERATED.findall(text):
            self.learn_generated(made)
            text = text.replace(made, self._learned[made])
        return _TIME.sub("<time>", _ADDRESS.sub("<address>", text))

    def bytes_(self, data: bytes) -> str:
        """Bytes as Python writes them; many of them by their number."""
        if len(data) > LONG_TEXT:
            return f"<{len(data)} bytes {data[:8]!r}…>"
        return repr(data)

    def position(self, text: str) -> str:
        """`ledger:entry` with whatever follows."""
        found = _POSITION.match(text)
        return f"{self.ledger(int(found[1]))}:{found[2]}{found[3]}" if found else self.text(text)


def json_lines(names: Names, value: Any, path: str = "", key: str = "") -> Iterator[str]:
    """One line for each value of a JSON body, with the way to it."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from json_lines(names, value[name], f"{path}.{names.text(name)}", name)
    elif isinstance(value, list) and value:
        for index, one in enumerate(value):
            yield from json_lines(names, one, f"{path}[{index}]", key)
    else:
        yield f"{path or 'body'} = {_scalar(names, value, key)}"


def _scalar(names: Names, value: Any, key: str) -> str:
    if key in _LEDGER_KEYS and isinstance(value, int):
        return names.ledger(value)
    if _RATE_KEY.match(key) and isinstance(value, int | float):
        return "<rate>"
    if _TIME_KEY.search(key) and value and not isinstance(value, bool):
        return "<time>"
    if key in _PLACE_KEYS and value:
        return "<set>"
    if isinstance(value, str):
        text = _RANGE.sub(lambda found: names.position(found[0]), value) if "Deleted" in key else names.position(value)
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def command_lines(names: Names, kind: str, content: ProtobufMessage) -> Iterator[str]:
    """A command: its kind and every field that differs from its default, and its text as a comment."""
    shown = [kind]
    for field, value in content.ListFields():
        if field.name in NOT_COMPARED or field.name in TEXT_FIELDS:
            continue
        if not field.is_repeated and field.message_type is None and value == field.default_value:
            continue
        shown.append(f"{field.name}={_field(names, field, value)}")
    yield " ".join(shown)
    for name in sorted(TEXT_FIELDS & {field.name for field, _ in content.ListFields()}):
        text = getattr(content, name)
        if isinstance(text, str) and text:
            yield from comment(names, text)


def comment(names: Names, text: str) -> Iterator[str]:
    """The text of an error, which is not compared: its first line."""
    first = names.text(text.strip().splitlines()[0]) if text.strip() else ""
    if first:
        yield f"# text: {first[:300]}"


def id_text(names: Names, wire: MessageIdData) -> str:
    """`ledger:entry:partition:batch index`."""
    ledger = names.ledger(wire.ledgerId)
    entry = -1 if wire.entryId == (1 << 64) - 1 else "max" if wire.entryId == LONG_MAX else wire.entryId
    text = f"{ledger}:{entry}:{wire.partition}:{wire.batch_index}"
    return text + (f" ack_set={list(wire.ack_set)}" if wire.ack_set else "")


def _field(names: Names, field: Any, value: Any) -> str:
    if field.is_repeated:
        return "[" + ", ".join(_one(names, field, one) for one in value) + "]"
    return _one(names, field, value)


def _one(names: Names, field: Any, value: Any) -> str:
    if field.message_type is not None:
        if isinstance(value, MessageIdData):
            return id_text(names, value)
        parts = [f"{inner.name}={_field(names, inner, part)}" for inner, part in value.ListFields()]
        return "{" + " ".join(parts) + "}"
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, str):
        return json.dumps(names.text(value), ensure_ascii=False)
    return names.bytes_(value) if isinstance(value, bytes) else str(value)


def error_name(code: int) -> str:
    """Pulsar's name of an error's number."""
    return ServerError.Name(code)
