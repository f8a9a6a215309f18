"""What the explorer's actions and states look like to a reader."""

from collections.abc import Sequence
from typing import Any

from magnetar.protocol.bookie_wire import decode_read
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

from .nodes import LATE_ANSWER, NAMES


def describe_state(record: LedgerMetadata, bookies: Sequence[tuple[Any, ...]], acknowledged: int) -> str:
    """The record, what each bookie holds († fenced), and the last acknowledged entry; behind a tab."""
    fragments = " ".join(f"{first}:{''.join(sorted(members))}" for first, members in record.fragments)
    held = " ".join(
        f"{name}{{{','.join(str(e) for e in range(2) if entries >> e & 1)}}}{'†' if fenced else ''}"
        for name, (_, fenced, entries, _, _) in zip(NAMES, bookies, strict=False)
    )
    return f"\t| {record.state.value} {fragments} | {held} | acknowledged to {acknowledged}"


def describe(label: Any) -> str:
    """One line for an action."""
    if isinstance(label[0], int):
        bookie, verb, request = label
        return f"{NAMES[bookie]} {verb}: {_word(request)}"
    client, event, bookie = label
    if bookie < 0:
        return f"{client}: {event}"
    if event == LATE_ANSWER:
        return f"{client} waits for {NAMES[bookie]} too long"
    return f"{client} hears {NAMES[bookie]}: {_word(event)}"


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    kind, *rest = value
    if kind == "read" and isinstance(rest[0], bytes):
        wanted = decode_read(rest[0])
        return f"read from {wanted.first}{' and fence' if wanted.fence else ''}"
    if kind == "add" and len(rest) == 3:
        return f"{'recovery ' if rest[2] else ''}add {rest[0]} (LAC {rest[1]})"
    if kind == "add":
        return f"add {rest[0]} {rest[1].name}"
    if kind == "fence":
        return f"fenced, LAC {rest[0]}" if rest else "fence"
    if kind == "read":
        return f"has {list(rest[0])}"
    return "connection lost"
