"""When the auditor checks ledgers and copies them."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class RepairSettings:
    """See the module."""

    auditor_interval_s: float = setting(
        "auditorPeriodicCheckInterval",
        "bookkeeper",
        86_400.0,
        "Pause between two walks of the auditor through all ledgers. What changes is checked within a minute anyway.",
        minimum=0.05,
        maximum=1 << 24,
        hostile=1.0,
        original="604800; a lost copy is found within a day",
    )
    lost_bookie_grace_s: float = setting(
        "lostBookieRecoveryDelay",
        "bookkeeper",
        60.0,
        "The auditor copies the ledgers of a bookie that has been away for this long to other bookies.",
        minimum=0,
        maximum=1 << 24,
        hostile=1.0,
        original="0; a bookie that restarts needs no repair",
    )
    repair_bytes_per_s: int = setting(
        "replicationRateByBytes",
        "bookkeeper",
        32 << 20,
        "Bytes per second of entries that a bookie copies from other bookies in a repair; -1 = no limit.",
        minimum=-1,
        maximum=1 << 40,
        original="-1; repairs leave disks and network to clients",
    )
