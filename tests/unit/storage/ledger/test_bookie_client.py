"""Connections to bookies: made on demand, failing fast, coming back; and metadata writes whose answers get lost."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import encode_add, encode_entry_header
from magnetar.protocol.errors import (
    BadVersion,
    BookieUnavailable,
    EntryUnknown,
    KeyExists,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    OutcomeUnknown,
    ServiceUnitNotReady,
    StaleEpoch,
)
from magnetar.protocol.rpc_frames import STATUS_DISCONNECTED
from magnetar.storage.ledger.bookie_client import ChannelState
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata.certain_writes import delete_certain, put_certain
from support.fakes.bookies import until

pytestmark = pytest.mark.cluster_settings(read_entry_timeout_s=0.1)


def add(cluster, bookie, entry_id=0):
    """An ADD; the future gets its status."""
    answer = asyncio.get_running_loop().create_future()
    parts = encode_add(encode_entry_header(5, 0, entry_id, -1, 1, b"x"), b"x")
    cluster.client.add(bookie, parts, lambda status, payload: answer.set_result(status))
    assert not answer.done(), "never from within the call"
    return answer


async def test_requests_wait_for_the_first_connection_and_share_it(cluster):
    answers = [add(cluster, "bookie-1", number) for number in range(10)]
    assert await asyncio.gather(*answers) == [0] * 10
    assert len(cluster[1].connections) == 1
    answer = await cluster.client.read("bookie-1", 5, 0, 0, 99, 1 << 20)
    assert len(answer.entries) == 10 and answer.next_entry == 100
    assert (await cluster.client.read_lac("bookie-1", 5, 0)).last_entry == 9


async def test_answers_become_typed_errors(cluster):
    await add(cluster, "bookie-1")
    with pytest.raises(NoSuchEntry):
        await cluster.client.read("bookie-1", 5, 0, 7, 9, 100)
    with pytest.raises(NoSuchLedger):
        await cluster.client.read("bookie-2", 5, 0, 7, 9, 100)
    with pytest.raises(NoSuchLedger):
        await cluster.client.read_lac("bookie-2", 5, 0)
    cluster[1].hang()
    with pytest.raises(EntryUnknown):
        await cluster.client.read("bookie-1", 5, 0, 0, 0, 100)
    cluster[1].crash()
    with pytest.raises(EntryUnknown):
        await cluster.client.fence("bookie-1", 5, 0)
    with pytest.raises(EntryUnknown):
        await cluster.client.fence("nobody", 5, 0)


async def test_a_dead_bookie_costs_nobody_time(cluster):
    cluster[1].alive = False
    assert await add(cluster, "bookie-1") == STATUS_DISCONNECTED
    assert cluster.client.is_suspect("bookie-1") and cluster.client.usable() == ["bookie-2", "bookie-3"]
    for _ in range(3):  # the state of the channel, not a new try, answers these
        answer = add(cluster, "bookie-1")
        await asyncio.sleep(0)
        assert answer.done() and answer.result() == STATUS_DISCONNECTED


async def test_it_comes_back_by_itself_and_says_so(cluster):
    told = []
    await add(cluster, "bookie-1")
    cluster[1].crash()
    await until(lambda: cluster.client.is_suspect("bookie-1"))
    cluster.client.on_usable[lambda: told.append(cluster.client.usable())] = None
    cluster[1].restart()
    await until(lambda: not cluster.client.is_suspect("bookie-1"))
    assert told and "bookie-1" in told[-1]
    assert await add(cluster, "bookie-1", 1) == 0


async def test_a_new_address_is_tried_at_once(cluster):
    cluster[1].alive = False
    await add(cluster, "bookie-1")
    channel = cluster.client._channels["bookie-1"]
    for _ in range(8):  # as after many failures: the next try by itself is seconds away
        channel.backoff.next_delay_s()
    channel.become(ChannelState.CONNECTING)
    cluster.client._lost(channel)
    cluster[1].restart()
    cluster.directory.update(
        info._replace(port=9999) if info.id == "bookie-1" else info for info in cluster.directory.bookies.values()
    )
    assert await add(cluster, "bookie-1") == 0


async def test_a_bookie_that_is_listed_again_is_tried_at_once(cluster):
    await add(cluster, "bookie-1")
    cluster[1].crash()
    await until(lambda: cluster.client.is_suspect("bookie-1"))
    cluster.list_all(without=["bookie-1"])
    assert cluster.client.usable() == ["bookie-2", "bookie-3"]
    await asyncio.sleep(0.08)
    cluster[1].restart()
    cluster.list_all()
    assert await add(cluster, "bookie-1", 1) == 0


async def test_a_move_ends_the_old_connection(cluster):
    await add(cluster, "bookie-1")
    old = cluster[1].connections[0]
    cluster.directory.update([BookieInfo("bookie-1", "127.0.0.1", 9999)])
    assert old.closed
    await until(lambda: not cluster.client.is_suspect("bookie-1") and len(cluster[1].connections) == 1)


async def test_a_slow_bookie_is_cut_off_for_everybody(cluster):
    await add(cluster, "bookie-1")
    cluster[1].hang()
    waiting = [add(cluster, "bookie-1", number) for number in range(1, 4)]
    await asyncio.sleep(0)
    cluster.client.report_slow("bookie-1")
    assert await asyncio.gather(*waiting) == [STATUS_DISCONNECTED] * 3


async def test_read_only_bookies_are_not_usable(cluster):
    cluster.directory.update(
        info._replace(writable=info.id != "bookie-2") for info in cluster.directory.bookies.values()
    )
    assert cluster.client.usable() == ["bookie-1", "bookie-3"]


async def test_closing_answers_everything(cluster):
    await add(cluster, "bookie-1")
    cluster[1].hang()
    pending = add(cluster, "bookie-1", 1)
    cluster[2].alive = False
    connecting = add(cluster, "bookie-2")
    await cluster.client.close()
    assert await pending == await connecting == STATUS_DISCONNECTED
    with pytest.raises((EntryUnknown, BookieUnavailable)):
        await cluster.client.read("bookie-3", 5, 0, 0, 0, 1)


class Lossy:
    """A store of one key whose answers follow a script: 'ok', 'lost' (done), 'dropped' (not done), 'away'."""

    def __init__(self, store, script):
        self.store, self.script = store, list(script)
        self.late = []

    async def get(self, key):
        return await self.store.get(key)

    async def _do(self, call):
        step = self.script.pop(0) if self.script else "ok"
        if step == "away":
            raise MetadataUnavailable("away")
        if step == "refused":
            raise ServiceUnitNotReady("not active")
        if step == "ended":
            raise StaleEpoch("the session has ended")
        if step == "dropped":
            raise OutcomeUnknown("dropped")
        if step == "late":  # carried out after the next try began
            self.late.append(call)
            raise OutcomeUnknown("late")
        for late in self.late:
            await late()
        self.late.clear()
        result = await call()
        if step == "lost":
            raise OutcomeUnknown("lost")
        return result

    async def put(self, key, value, expected_version):
        return await self._do(lambda: self.store.put(key, value, expected_version))

    async def delete(self, key, expected_version):
        return await self._do(lambda: self.store.delete(key, expected_version))


@pytest.mark.parametrize(
    "script",
    [[], ["lost"], ["dropped"], ["late"], ["lost", "lost"], ["dropped", "away", "lost"], ["lost", "refused", "away"]],
)
async def test_a_compare_and_set_happens_once_whatever_gets_lost(cluster, script):
    lossy = Lossy(cluster.metadata, script)
    assert await put_certain(cluster.env, lossy, "k", b"1", None) == 0
    lossy.script = list(script)
    assert await put_certain(cluster.env, lossy, "k", b"2", 0) == 1
    assert await cluster.metadata.get("k") == (b"2", 1)


async def test_somebody_elses_write_is_not_taken_for_our_own(cluster):
    await cluster.metadata.put("k", b"theirs", None)
    with pytest.raises(KeyExists):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["dropped"]), "k", b"ours", None)
    with pytest.raises(BadVersion):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["dropped"]), "k", b"ours", 7)
    with pytest.raises(NoSuchKey):
        await put_certain(cluster.env, cluster.metadata, "none", b"ours", 7)


async def test_away_before_anything_was_sent_is_certain(cluster):
    with pytest.raises(MetadataUnavailable):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["away"]), "k", b"1", None)
    with pytest.raises(OutcomeUnknown):
        lossy = Lossy(cluster.metadata, ["dropped", *["away"] * 50])
        await put_certain(cluster.env, lossy, "k", b"1", None, settle_limit_s=0.05)
    assert await cluster.metadata.get("k") is None


async def test_a_refusal_after_a_lost_answer_does_not_make_it_certain(cluster):
    with pytest.raises(OutcomeUnknown):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["lost", "ended"]), "k", b"1", None)
    assert await cluster.metadata.get("k") == (b"1", 0)
    with pytest.raises(StaleEpoch):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["ended"]), "k", b"2", 0)
    with pytest.raises(ServiceUnitNotReady):
        await put_certain(cluster.env, Lossy(cluster.metadata, ["refused"]), "k", b"2", 0)


@pytest.mark.parametrize("script", [[], ["lost"], ["dropped"], ["dropped", "away"], ["lost", "refused"]])
async def test_deletes_are_settled_too(cluster, script):
    await cluster.metadata.put("k", b"1", None)
    assert await delete_certain(cluster.env, Lossy(cluster.metadata, script), "k")
    assert await cluster.metadata.get("k") is None
    assert not await delete_certain(cluster.env, cluster.metadata, "k")


async def test_a_delete_that_was_never_sent_is_certain_too(cluster):
    await cluster.metadata.put("k", b"1", None)
    with pytest.raises(MetadataUnavailable):
        await delete_certain(cluster.env, Lossy(cluster.metadata, ["away"]), "k")
    assert await cluster.metadata.get("k") is not None
