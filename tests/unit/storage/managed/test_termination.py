"""Terminating a topic's storage: the end is stored, survives owners, and nothing is appended behind it."""

import asyncio

import pytest

from magnetar.protocol.errors import MetadataUnavailable, StaleEpoch, TopicTerminated
from support.stores.managed_ledger_kit import append, bodies, open_, read_all

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)


async def test_a_terminated_ledger_refuses_appends_here_and_at_later_owners(cluster):
    managed = await open_(cluster)
    await managed.open_cursor("s")
    await append(managed, bodies(25))
    end = await managed.termination.terminate()
    assert end == managed.last_confirmed and managed.termination.end == end
    assert await managed.termination.terminate() == end
    with pytest.raises(TopicTerminated):
        managed.append(b"late", lambda position, error: None)
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.termination.end == end and await again.termination.terminate() == end
    with pytest.raises(TopicTerminated):
        again.append(b"late", lambda position, error: None)
    assert [body for _, body in await read_all(again)] == bodies(25)
    await again.close()


async def test_an_empty_ledger_is_terminated(cluster):
    managed = await open_(cluster)
    assert await managed.termination.terminate() == (-1, -1)
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.termination.end == (-1, -1) and again.last_confirmed == (-1, -1)
    await again.close()


async def test_the_end_is_known_when_everything_was_trimmed(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(5))
    end = await managed.termination.terminate()
    await managed.trim()
    assert managed.ledger_infos == []
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.last_confirmed == again.termination.end == end
    await again.close()


async def test_what_is_pending_is_stored_in_front_of_the_end_or_fails(cluster):
    managed = await open_(cluster)
    outcomes = []
    for body in bodies(15):
        managed.append(body, lambda position, error: outcomes.append(position))
    end = await managed.termination.terminate()
    await asyncio.sleep(0)
    assert len(outcomes) == 15 and all(position is None or position <= end for position in outcomes)
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.last_confirmed == end
    await again.close()


async def test_a_crash_before_the_end_is_stored_leaves_a_topic_that_takes_entries(cluster, monkeypatch):
    managed = await open_(cluster)
    await managed.open_cursor("s")
    await append(managed, bodies(5))

    async def away(*arguments, **options):
        raise MetadataUnavailable("away")

    monkeypatch.setattr(managed._owned, "change", away)
    with pytest.raises(MetadataUnavailable):
        await managed.termination.terminate()
    with pytest.raises(TopicTerminated):
        managed.append(b"late", lambda position, error: None)
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.termination.end is None
    await append(again, bodies(2, 5))
    assert [body for _, body in await read_all(again)] == bodies(7)
    await again.close()


async def test_an_owner_that_was_replaced_cannot_terminate(cluster):
    old = await open_(cluster)
    await append(old, bodies(3))
    fenced = []
    old.on_fenced.append(fenced.append)
    new = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    with pytest.raises(StaleEpoch):
        await old.termination.terminate()
    assert len(fenced) == 1 and new.termination.end is None
    await append(new, bodies(2, 3))
    await new.close()
    await old.close()
