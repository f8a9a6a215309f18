"""What members report of themselves, and what the status of a cluster says: plain values, which travel as they are.

A member registers with a `MemberData` and sends a `MemberReport` with its heartbeats. Keys that are not declared here
are carried along, so that members of different versions get on. Sizes are in bytes, times in milliseconds since the
epoch.
"""

from typing import NotRequired, TypedDict


class MemberData(TypedDict, total=False):
    """What a member says of itself when it registers. A broker gives its URLs and `rpc`, a bookie the others."""

    url: str
    """Where clients reach a broker that name no listener: `pulsar://host:port`, or `url_tls` if it has TLS only. The
    broker is known by it.
    """
    url_tls: str
    """The same with TLS: `pulsar+ssl://host:port`; empty without."""
    listeners: dict[str, str]
    """The broker's URLs by the name of the listener: `pulsar://host:port`, or `pulsar+proxy://host:port`."""
    listeners_tls: dict[str, str]
    """The URLs with TLS by the name of the listener: `pulsar+ssl://host:port`."""
    rpc: list[str | int]
    """[host, port] of a broker's internal RPC; see `rpc_address`."""
    instance: str
    """The life of the bookie's disk (its cookie's)."""
    writable: bool
    """Whether the bookie takes new ledgers; the report says it from the first heartbeat on."""
    node: str
    """The machine on which the bookie runs. Copies of an entry go to different ones."""
    zone: str
    """Its rack or zone, if its Ray node has a label that says so."""
    ledgers_end: int
    """All ledger ids that the bookie knows are below."""
    version: str
    """The release of Magnetar that the process runs."""
    launch: int
    """Which start of this member the process is: a later one has a higher number."""


def rpc_address(data: MemberData) -> tuple[str, int] | None:
    """(host, port) of a broker's internal RPC; None where there is none."""
    match data.get("rpc"):
        case [str(host), int(port)]:
            return host, port
        case _:
            return None


class DiskReport(TypedDict, total=False):
    """A disk; empty when there is none to look at. `full`: a bookie takes no new entries."""

    used: int
    total: int
    free: int
    full: bool


class ScrubReport(TypedDict, total=False):
    """Damaged entries of a bookie, and how far its scrub is. Totals count from the time when the disk was new."""

    damaged: int
    found: int
    repaired: int
    passes: int
    pass_share: float
    scrubbed_bytes: int


class MemberReport(TypedDict, total=False):
    """What a bookie reports; other members report nothing. `limbo` is the reason, empty outside limbo."""

    writable: bool
    limbo: str
    disk: DiskReport
    scrub: ScrubReport
    unknown_ledgers: int


class BookieFigures(TypedDict):
    """One bookie in detail."""

    bookie: str
    incarnation: str
    directory: str
    disk_used_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    disk_full: bool
    read_only: bool
    limbo: bool
    limbo_reason: str
    failed: str
    ledgers: int
    unknown_ledgers: int
    tombstones: int
    segments: int
    segment_bytes: int
    live_bytes: int
    pending_bytes: int
    adds: int
    added_bytes: int
    scrub: ScrubReport


class MemberStatus(TypedDict):
    """A live member. `topics` counts those that a broker owns. `load` is what a broker reported last, in entries per
    second.
    """

    id: str
    role: str
    incarnation: str
    host: str
    port: int
    data: MemberData
    report: MemberReport
    silent_s: float
    topics: int
    load: NotRequired[float]


class CoordinatorStatus(TypedDict):
    """The active coordinator."""

    epoch: int
    host: str
    port: int
    started_ms: int
    in_grace: bool
    disk: DiskReport
    version: NotRequired[str]


class AuditorStatus(TypedDict):
    """The auditor: its progress, the bookies that are lost or in limbo, damaged entries by bookie.

    `incomplete` counts ledgers that lack copies, `bytes_to_go` is their length, `to_check` counts those that it still
    has to look at. `crowded` counts those that lack none, but have two copies of an entry on one machine.
    """

    rounds: int
    running: bool
    whole: bool
    ledgers: int
    open_ledgers: int
    checked: int
    incomplete: int
    crowded: int
    to_check: int
    bytes_to_go: int
    round_ledgers: int
    repaired_total: int
    orphans_deleted_total: int
    copied_entries_total: int
    copied_bytes_total: int
    failures_total: int
    last_failure: str
    finished_ms: int
    lost_bookies: list[str]
    limbo: list[str]
    damaged: dict[str, int]


class DrainView(TypedDict):
    """How far a member that drains has come. `left` counts the topics of a broker, or the ledgers of a bookie, that it
    still has. `most` is the most that it was seen with. -1: not counted yet.
    """

    left: int
    most: int


class DesiredView(TypedDict):
    """What should run. `draining` members end when they are empty, `leaving` ones are on a Ray node that drains.

    A bookie is among `draining` until its directory and its cookie are gone, although `bookies` no longer names it.
    """

    brokers: list[str]
    bookies: list[str]
    draining: dict[str, DrainView]
    leaving: list[str]
    left_over: NotRequired[dict[str, str]]
    """Bookies that have ended since the coordinator started, and why their directories are left over."""


class RestartView(TypedDict):
    """How long the restart of one process took, in seconds: until it was safe, until the process ran again, and until
    all was as before.
    """

    process: str
    waited_s: float
    away_s: float
    settled_s: float


class ClusterView(TypedDict):
    """The cluster as the coordinator sees it."""

    cluster_id: str
    coordinator: CoordinatorStatus
    members: list[MemberStatus]
    registered_bookies: list[str]
    topics: int
    assignments: int
    deleting: list[str]
    """Topics that are being deleted."""
    unexpected_errors: int
    auditor: AuditorStatus
    load_moves: NotRequired[int]
    """Topics that moved for their load since the coordinator started."""
    restored_ledgers: list[list[int]]
    """(first, end) of the ledger ids that restored metadata does not know."""
    desired: NotRequired[DesiredView]
    """Not in a cluster that was started without a record of it."""


class ProcessStatus(TypedDict):
    """One process that the supervisor keeps running. `problem` says why it does not run, else it is empty."""

    node_id: str
    role: str
    state: str
    restarts: int
    problem: str
    directory: str
    ray_node_id: str


class LeftOutNode(TypedDict):
    """A Ray node on which nothing starts, because it could not be looked at. `problem` says why, and what to do."""

    ray_node_id: str
    address: str
    problem: str


class SupervisedView(ClusterView):
    """The cluster as the coordinator sees it, and the processes of the others."""

    processes: list[ProcessStatus]
    left_out: NotRequired[list[LeftOutNode]]
    """On Ray only."""


class RayStatus(TypedDict):
    """The Ray under a cluster."""

    address: str
    kind: str


class ClusterStatus(SupervisedView):
    """A running cluster, and where to reach it. `ray` and `log_directory`: on Ray only."""

    service_url: str
    admin_url: str
    data_directory: str
    log_directory: NotRequired[str]
    ray: NotRequired[RayStatus]
