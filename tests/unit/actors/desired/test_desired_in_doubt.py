"""A change of the desired state whose outcome the store did not tell: it happens at once or never."""

from collections.abc import AsyncIterator

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.actors.desired.state import DesiredMembers
from magnetar.protocol.errors import BadVersion, OutcomeUnknown
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import certain_records, certain_writes
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from support.fakes.bookies import until
from support.stores.silent_store import SilentStore

pytestmark = pytest.mark.parametrize("landed", [True, False], ids=["stored", "not stored"])


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch, landed: bool) -> SilentStore:
    monkeypatch.setattr(certain_records, "SETTLE_INITIAL_S", 0.005)
    monkeypatch.setitem(certain_writes.put_certain.__kwdefaults__, "settle_limit_s", 0.01)
    store = SilentStore()
    store.landed = landed
    await create_cluster(store, "c", 0)
    if await store.get(metadata_keys.DESIRED_STATE) is None:
        await store.put(metadata_keys.DESIRED_STATE, DesiredState.of(2, 4).pack(), None)
    return store


@pytest.fixture
async def desired(store: SilentStore) -> AsyncIterator[DesiredMembers]:
    env = Environment.real(1)
    members = DesiredMembers(env, await take_office(store), Settings())
    await members.start()
    yield members
    await members.close()
    env.close()


async def test_a_drain_that_failed_happens_at_once_or_never(
    store: SilentStore, desired: DesiredMembers, landed: bool
) -> None:
    before = await store.get(metadata_keys.DESIRED_STATE)
    assert before is not None
    told: list[frozenset[str]] = []
    desired.on_change.append(lambda: told.append(desired.emptied))
    store.silent, store.away = True, 3
    with pytest.raises(OutcomeUnknown):
        await desired.drain("broker-2")
    assert told == [] and not desired.emptied
    store.silent = False
    await until(lambda: told)
    assert told == [frozenset({"broker-2"} if landed else ())]
    stored = await store.get(metadata_keys.DESIRED_STATE)
    assert stored is not None and DesiredState.unpack(stored.value) == desired.state
    with pytest.raises(BadVersion):
        await store.put(metadata_keys.DESIRED_STATE, before.value, before.version)
    assert "broker-2" in (await desired.undrain("broker-2")).wanted_brokers
