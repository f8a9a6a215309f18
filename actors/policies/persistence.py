"""The policy of how many copies the entries of a topic have: `persistence` in Pulsar."""

from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .kinds import INT_MAX, FieldRecord, Real, WholeNumber, part
from .policy import PolicyValues

COPIES_MAX = 5
"""Pulsar's."""
MARK_DELETE_RATE = 1.0
"""Pulsar's default, `managedLedgerDefaultMarkDeleteRateLimit`."""


@dataclass(frozen=True, slots=True)
class Persistence(FieldRecord):
    """Over how many bookies a new ledger is striped, how many copies each entry has, and on how many the writer waits.

    `mark_delete_rate` is stored and shown. It has no effect: the settings say when cursors are written.
    """

    ensemble_size: int = part("bookkeeperEnsemble", WholeNumber(-INT_MAX), 2)
    write_quorum: int = part("bookkeeperWriteQuorum", WholeNumber(-INT_MAX), 2)
    ack_quorum: int = part("bookkeeperAckQuorum", WholeNumber(-INT_MAX), 2)
    mark_delete_rate: float = part("managedLedgerMaxMarkDeleteRate", Real(), -1.0)

    def fault(self) -> str:
        counts = {"Ensemble": self.ensemble_size, "WriteQuorum": self.write_quorum, "AckQuorum": self.ack_quorum}
        for name, count in counts.items():
            if not 0 < count <= COPIES_MAX:
                return f"Bookkeeper-{name} must be <= {COPIES_MAX} and > 0."
        if self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            return ""
        return "Bookkeeper " + " >= ".join(f"{name} ({count})" for name, count in counts.items())


def default_persistence(settings: Settings) -> Persistence:
    """What the settings say."""
    return Persistence(settings.ensemble_size, settings.write_quorum, settings.ack_quorum, MARK_DELETE_RATE)


def accepts_persistence(value: Persistence, settings: Settings, others: PolicyValues) -> str:
    """An ack quorum of 1 loses entries with one disk. The cluster has to allow it."""
    if value.ack_quorum < 2 and not settings.allow_single_copy_acks:
        return (
            "with an ack quorum of 1 a ledger loses entries when one disk fails: choose 2, or start the cluster with "
            "allowAckQuorumOfOne=true"
        )
    return ""
