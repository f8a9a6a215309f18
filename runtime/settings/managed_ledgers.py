"""When ledgers and cursors of a topic roll over, and what the broker caches."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class ManagedLedgerSettings:
    """See the module."""

    ledger_entries_max: int = setting(
        "managedLedgerMaxEntriesPerLedger",
        50_000,
        "The broker rolls a ledger over after this many entries.",
        within=(1, 1 << 40),
        hostile=3,
    )
    ledger_size_max_mb: int = setting(
        "managedLedgerMaxSizePerLedgerMbytes",
        2048,
        "The broker rolls a ledger over at this size.",
        within=(1, 1 << 20),
    )
    ledger_rollover_min_minutes: float = setting(
        "managedLedgerMinLedgerRolloverTimeMinutes",
        10,
        "The broker keeps a full ledger open for at least this long.",
        within=(0, 1 << 20),
        hostile=0,
    )
    ledger_rollover_max_minutes: float = setting(
        "managedLedgerMaxLedgerRolloverTimeMinutes",
        240,
        "The broker closes a ledger that has entries after this long.",
        within=(0.001, 1 << 20),
    )
    cache_size_mb: int = setting(
        "managedLedgerCacheSizeMB",
        64,
        "Tail cache of one broker, for all topics together.",
        within=(0, 1 << 20),
        hostile=0,
        original="a fifth of the JVM's direct memory; there is no JVM",
    )
    cursor_flush_interval_s: float = setting(
        "managedLedgerCursorPositionFlushSeconds",
        1.0,
        "The broker stores the position of a cursor at most this often. An acknowledgement that asks for a "
        "receipt is stored at once.",
        within=(0, 3600),
        hostile=0.01,
        original="60; fewer messages come again after a crash",
    )
    cursor_ledger_entries_max: int = setting(
        "managedLedgerCursorMaxEntriesPerLedger",
        50_000,
        "A cursor gets a new ledger after this many snapshots.",
        within=(1, 1 << 40),
        hostile=2,
    )
