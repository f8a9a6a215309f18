"""How large entries are, how many copies they have, and how long bookies may take."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class RepairSettings:
    """When the auditor checks ledgers and copies them."""

    auditor_interval_s: float = setting(
        "auditorPeriodicCheckInterval",
        86_400.0,
        "Pause between two walks of the auditor through all ledgers. What changes is checked within a minute anyway.",
        within=(0.05, 1 << 24),
        hostile=1.0,
        original="604800; a lost copy is found within a day",
        origin="bookkeeper",
    )
    lost_bookie_grace_s: float = setting(
        "lostBookieRecoveryDelay",
        60.0,
        "The auditor copies the ledgers of a bookie that has been away for this long to other bookies.",
        within=(0, 1 << 24),
        hostile=1.0,
        original="0; a bookie that restarts needs no repair",
        origin="bookkeeper",
    )
    repair_bytes_per_s: int = setting(
        "replicationRateByBytes",
        32 << 20,
        "Bytes per second of entries that a bookie copies from other bookies in a repair; -1 = no limit.",
        within=(-1, 1 << 40),
        original="-1; repairs leave disks and network to clients",
        origin="bookkeeper",
    )


@dataclass(frozen=True)
class ReplicationSettings:
    """See the module."""

    max_message_size_bytes: int = setting(
        "maxMessageSize",
        5_242_880,
        "Largest message (entry) that brokers accept.",
        within=(1024, 1 << 30),
    )
    bookie_frame_size_max_bytes: int = setting(
        "nettyMaxFrameSizeBytes",
        5_253_120,
        "Largest frame that bookies accept. It must be above maxMessageSize.",
        within=(2048, (1 << 30) + (1 << 20)),
        original="5242880; 5253120 in Pulsar's bookkeeper.conf",
        origin="bookkeeper",
    )
    ensemble_size: int = setting(
        "managedLedgerDefaultEnsembleSize",
        3,
        "Number of bookies over which a ledger is striped.",
        within=(1, 64),
        original="2; publishing goes on while one bookie is away",
    )
    write_quorum: int = setting(
        "managedLedgerDefaultWriteQuorum",
        3,
        "Number of copies of each entry.",
        within=(1, 64),
        original="2; publishing goes on while one bookie is away",
    )
    ack_quorum: int = setting(
        "managedLedgerDefaultAckQuorum",
        2,
        "Number of synced copies that the writer waits for before it acknowledges an entry.",
        within=(1, 64),
    )
    allow_single_copy_acks: bool = setting(
        "allowAckQuorumOfOne",
        False,
        "Permit an ack quorum of 1. Such a ledger loses entries when one disk fails.",
        origin="magnetar",
    )
    allow_asynchronous_metadata_standbys: bool = setting(
        "allowAsynchronousMetadataStandbys",
        False,
        "Permit a PostgreSQL URL with several hosts, none of which is a synchronous standby. A failover then loses "
        "changes of the metadata that were answered.",
        origin="magnetar",
    )
    add_entry_timeout_s: float = setting(
        "addEntryTimeoutSec",
        5.0,
        "Add timeout: the writer replaces a bookie that does not answer an add for this long.",
        within=(0.05, 3600),
        hostile=0.2,
        origin="bookkeeper",
    )
    read_entry_timeout_s: float = setting(
        "readEntryTimeoutSec",
        5.0,
        "Read timeout: the reader gives up on a bookie that does not answer a read for this long.",
        within=(0.05, 3600),
        hostile=0.2,
        origin="bookkeeper",
    )
    speculative_read_delay_ms: int = setting(
        "speculativeReadTimeout",
        500,
        "The reader also asks the next copy when a bookie has not answered for this long.",
        within=(1, 60_000),
        hostile=10,
        original="2000; a slow bookie delays a read less",
        origin="bookkeeper",
    )
    reads_under_way_max: int = setting(
        "managedLedgerMaxReadsInFlight",
        8,
        "Range reads that one reader may have in flight.",
        within=(1, 1024),
        hostile=1,
        origin="magnetar",
    )
