"""How large entries are, how many copies they have, and how long bookies may take."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class RepairSettings:
    """When the auditor checks ledgers and copies them."""

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


@dataclass(frozen=True)
class ReplicationSettings:
    """See the module."""

    max_message_size_bytes: int = setting(
        "maxMessageSize",
        "pulsar",
        5_242_880,
        "Largest message (entry) that brokers accept.",
        minimum=1024,
        maximum=1 << 30,
    )
    bookie_frame_size_max_bytes: int = setting(
        "nettyMaxFrameSizeBytes",
        "bookkeeper",
        5_253_120,
        "Largest frame that bookies accept. It must be above maxMessageSize.",
        minimum=2048,
        maximum=(1 << 30) + (1 << 20),
        original="5242880; 5253120 in Pulsar's bookkeeper.conf",
    )
    ensemble_size: int = setting(
        "managedLedgerDefaultEnsembleSize",
        "pulsar",
        3,
        "Number of bookies over which a ledger is striped.",
        minimum=1,
        maximum=64,
        original="2; publishing goes on while one bookie is away",
    )
    write_quorum: int = setting(
        "managedLedgerDefaultWriteQuorum",
        "pulsar",
        3,
        "Number of copies of each entry.",
        minimum=1,
        maximum=64,
        original="2; publishing goes on while one bookie is away",
    )
    ack_quorum: int = setting(
        "managedLedgerDefaultAckQuorum",
        "pulsar",
        2,
        "Number of synced copies that the writer waits for before it acknowledges an entry.",
        minimum=1,
        maximum=64,
    )
    allow_single_copy_acks: bool = setting(
        "allowAckQuorumOfOne",
        "magnetar",
        False,
        "Permit an ack quorum of 1. Such a ledger loses entries when one disk fails.",
    )
    allow_asynchronous_metadata_standbys: bool = setting(
        "allowAsynchronousMetadataStandbys",
        "magnetar",
        False,
        "Permit a PostgreSQL URL with several hosts, none of which is a synchronous standby. A failover then loses "
        "changes of the metadata that were answered.",
    )
    add_entry_timeout_s: float = setting(
        "addEntryTimeoutSec",
        "bookkeeper",
        5.0,
        "Add timeout: the writer replaces a bookie that does not answer an add for this long.",
        minimum=0.05,
        maximum=3600,
        hostile=0.2,
    )
    read_entry_timeout_s: float = setting(
        "readEntryTimeoutSec",
        "bookkeeper",
        5.0,
        "Read timeout: the reader gives up on a bookie that does not answer a read for this long.",
        minimum=0.05,
        maximum=3600,
        hostile=0.2,
    )
    speculative_read_delay_ms: int = setting(
        "speculativeReadTimeout",
        "bookkeeper",
        500,
        "The reader also asks the next copy when a bookie has not answered for this long.",
        minimum=1,
        maximum=60_000,
        hostile=10,
        original="2000; a slow bookie delays a read less",
    )
    reads_under_way_max: int = setting(
        "managedLedgerMaxReadsInFlight",
        "magnetar",
        8,
        "Range reads that one reader may have in flight.",
        minimum=1,
        maximum=1024,
        hostile=1,
    )
