"""The identity of a cluster: created once, by `magnetar start`, in a store that holds none.

Everything that deletes or refuses compares against it: bookie cookies, garbage collection, the RPC handshake. The
coordinator only reads it. An empty store behind a running cluster is an accident, and with a new identity bookies would
treat all their data as garbage.
"""

from ...protocol.errors import ClusterError, FormatTooNew, KeyExists, MetadataError
from ...protocol.slots import SLOTS_DEFAULT, is_slot_count
from ...protocol.topics import DEFAULT_NAMESPACE, DEFAULT_TENANT
from . import keys as metadata_keys
from .store import MetadataStore, Versioned, Write, one_result, pack, unpack

METADATA_FORMAT = 2
"""The highest format of a store that this version reads, and what it creates.

1: brokers own topics, with an assignment each. 2: brokers own slots (see `slot_rows`).
"""
RECORDS_PER_TRANSACTION = 500


async def read_cluster_id(store: MetadataStore) -> str | None:
    """The cluster's id, or None in a store that holds no cluster."""
    return cluster_id_of(await store.get(metadata_keys.CLUSTER))


def cluster_id_of(record: Versioned | None) -> str | None:
    """The cluster's id in its record, None when there is no record. Raises FormatTooNew."""
    if record is None:
        return None
    fields = unpack(record.value)
    found = fields.get("format", 1)
    if not isinstance(found, int) or found > METADATA_FORMAT:
        raise FormatTooNew(
            f"the metadata has format {found}, and this version of Magnetar reads format {METADATA_FORMAT}: start the "
            "version that wrote it, or a later one"
        )
    return str(fields["id"])


async def convert(store: MetadataStore) -> int:
    """Bring a store to the present format, as the only coordinator. Returns how many slots its cluster has.

    The format is raised first: an earlier version then refuses the store. Assignments of topics have no meaning any
    longer and are deleted, also those that a crash left over. Raises MetadataError, MetadataUnavailable, FormatTooNew.
    """
    record = await store.get(metadata_keys.CLUSTER)
    if record is None:
        raise ClusterError("the metadata store holds no cluster: create one with `magnetar start`")
    cluster_id_of(record)
    fields = unpack(record.value)
    slots = fields.get("slots", SLOTS_DEFAULT)
    if not isinstance(slots, int) or not is_slot_count(slots):
        raise MetadataError(f"the record of the cluster is malformed: it names {slots!r:.100} slots")
    if fields.get("format", 1) != METADATA_FORMAT:
        changed = pack({**fields, "format": METADATA_FORMAT, "slots": slots})
        await store.put(metadata_keys.CLUSTER, changed, record.version)
    while left := await store.list(metadata_keys.ASSIGNMENTS_PREFIX, limit=RECORDS_PER_TRANSACTION):
        for result in await store.write_many([Write(key, None, None) for key, _ in left]):
            one_result([result])
    return slots


async def create_cluster(store: MetadataStore, cluster_id: str, created_ms: int, *, slots: int = SLOTS_DEFAULT) -> None:
    """Write the records that a new cluster begins with: namespace public/default, epoch 0, and last the identity.

    Raises ClusterError when the store holds another cluster. After a crash in the middle it can be called again, also
    with another id, since the identity is written last.
    """
    existing = await read_cluster_id(store)
    if existing == cluster_id:
        return
    if existing is not None:
        raise ClusterError(f"the metadata store belongs to cluster {existing}")
    policies = pack({"policies": {}, "created_ms": created_ms})
    for key, value in (
        (metadata_keys.tenant(DEFAULT_TENANT), pack({"created_ms": created_ms})),
        (metadata_keys.namespace(f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}"), policies),
        (metadata_keys.COORDINATOR_EPOCH, pack({"epoch": 0})),
    ):
        try:
            await store.put(key, value, None)
        except KeyExists:
            continue  # an earlier try got this far
    try:
        identity = {"id": cluster_id, "created_ms": created_ms, "format": METADATA_FORMAT, "slots": slots}
        await store.put(metadata_keys.CLUSTER, pack(identity), None)
    except KeyExists:
        if await read_cluster_id(store) != cluster_id:
            raise ClusterError("another process created a cluster in this metadata store at the same time") from None
