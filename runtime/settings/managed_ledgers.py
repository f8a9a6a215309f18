"""When ledgers and cursors of a topic roll over, and what the broker caches."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class ManagedLedgerSettings:
    """See the module."""

    ledger_entries_max: int = setting(
        "managedLedgerMaxEntriesPerLedger",
        "pulsar",
        50_000,
        "The broker rolls a ledger over after this many entries.",
        minimum=1,
        maximum=1 << 40,
        hostile=3,
    )
    ledger_size_max_mb: int = setting(
        "managedLedgerMaxSizePerLedgerMbytes",
        "pulsar",
        2048,
        "The broker rolls a ledger over at this size.",
        minimum=1,
        maximum=1 << 20,
    )
    ledger_rollover_min_minutes: float = setting(
        "managedLedgerMinLedgerRolloverTimeMinutes",
        "pulsar",
        10,
        "The broker keeps a full ledger open for at least this long.",
        minimum=0,
        maximum=1 << 20,
        hostile=0,
    )
    ledger_rollover_max_minutes: float = setting(
        "managedLedgerMaxLedgerRolloverTimeMinutes",
        "pulsar",
        240,
        "The broker closes a ledger that has entries after this long.",
        minimum=0.001,
        maximum=1 << 20,
    )
    cache_size_mb: int = setting(
        "managedLedgerCacheSizeMB",
        "pulsar",
        64,
        "Tail cache of one broker, for all topics together.",
        minimum=0,
        maximum=1 << 20,
        hostile=0,
        original="a fifth of the JVM's direct memory; there is no JVM",
    )
    cursor_flush_interval_s: float = setting(
        "managedLedgerCursorPositionFlushSeconds",
        "pulsar",
        1.0,
        "The broker stores the position of a cursor at most this often. An acknowledgement that asks for a "
        "receipt is stored at once.",
        minimum=0,
        maximum=3600,
        hostile=0.01,
        original="60; fewer messages come again after a crash",
    )
    cursor_ledger_entries_max: int = setting(
        "managedLedgerCursorMaxEntriesPerLedger",
        "pulsar",
        50_000,
        "A cursor gets a new ledger after this many snapshots.",
        minimum=1,
        maximum=1 << 40,
        hostile=2,
    )
