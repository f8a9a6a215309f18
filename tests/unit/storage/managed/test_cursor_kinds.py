"""Cursors that are no subscriptions: they are kept like all others, hold back trimming, and are not shown."""

import pytest

from magnetar.protocol.errors import MetadataError, NotAllowedError, SubscriptionNotFound
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from support.stores.managed_ledger_kit import NAME, append, bodies, open_

pytestmark = pytest.mark.cluster_settings(
    ledger_entries_max=2, ledger_rollover_min_minutes=0, cursor_flush_interval_s=60.0
)

HIDDEN = [kind for kind in CursorKind if kind is not CursorKind.SUBSCRIPTION]


async def record_of(cluster, name):
    return CursorRecord.unpack((await cluster.metadata.get(metadata_keys.cursor(NAME, name))).value)


def test_the_record_of_a_subscription_has_the_bytes_that_it_had_before_kinds() -> None:
    fields = {"epoch": 3, "ledger": 9, "state": b"state"}
    assert CursorRecord(3, 9, b"state").pack() == pack(fields)
    assert CursorRecord.unpack(pack(fields)).kind is CursorKind.SUBSCRIPTION


@pytest.mark.parametrize("kind", CursorKind)
def test_a_record_keeps_its_kind(kind: CursorKind) -> None:
    record = CursorRecord(3, None, b"state", kind)
    assert CursorRecord.unpack(record.pack()) == record


@pytest.mark.parametrize("kind", ["", "later", 1, None, ["subscription"], {}])
def test_a_record_of_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(MetadataError):
        CursorRecord.unpack(pack({"epoch": 1, "ledger": None, "state": b"", "kind": kind}))


@pytest.mark.parametrize("kind", HIDDEN)
async def test_a_hidden_cursor_holds_back_trimming_but_is_no_subscription(cluster, kind):
    managed = await open_(cluster)
    hidden = await managed.open_cursor("hidden", "earliest", kind=kind)
    subscription = await managed.open_cursor("s", "earliest")
    await append(managed, bodies(6))
    subscription.acknowledge_cumulative(managed.last_confirmed)
    assert list(managed.subscription_cursors) == ["s"]
    full = [info.ledger_id for info in managed.ledger_infos if info.closed]
    assert full and await managed.trim() == []
    hidden.acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == full
    await managed.close()


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("last", ["a crash", "a close"])
async def test_a_hidden_cursor_keeps_its_kind_when_the_topic_moves(cluster, kind, last):
    managed = await open_(cluster, keep=True)
    hidden = await managed.open_cursor("hidden", "earliest", kind=kind)
    positions = (await append(managed, bodies(3))).positions
    hidden.acknowledge(positions[1:2])
    await hidden.flush()
    in_ledger = await record_of(cluster, "hidden")
    assert in_ledger.kind is kind and in_ledger.ledger_id is not None
    if last == "a close":
        await managed.close()
        inline = await record_of(cluster, "hidden")
        assert inline.kind is kind and inline.ledger_id is None
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert (await record_of(cluster, "hidden")).kind is kind
    assert list(again.subscription_cursors) == ["keep"]
    found = await again.open_cursor("hidden", kind=kind)
    assert found is again.cursors["hidden"] and found.is_acknowledged(positions[1])
    await again.close()


async def test_one_name_has_one_cursor_of_one_kind(cluster):
    managed = await open_(cluster)
    hidden = await managed.open_cursor("name", "earliest", kind=CursorKind.COMPACTION)
    with pytest.raises(NotAllowedError, match="compaction"):
        await managed.open_cursor("name", "latest")
    with pytest.raises(SubscriptionNotFound):
        await managed.delete_cursor("name")
    assert managed.cursors == {"name": hidden}
    await managed.delete_cursor("name", CursorKind.COMPACTION)
    assert managed.cursors == {} and await cluster.metadata.get(metadata_keys.cursor(NAME, "name")) is None
    await managed.open_cursor("name", "latest")
    assert list(managed.subscription_cursors) == ["name"]
    await managed.close()
