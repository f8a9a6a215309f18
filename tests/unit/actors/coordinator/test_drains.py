"""How drained members are ended and forgotten, when something happens at the last moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.actors.coordinator.drains import Drains
from magnetar.actors.desired.record import DesiredState
from magnetar.actors.desired.state import DesiredMembers
from magnetar.protocol.errors import MetadataUnavailable, NoSuchKey
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore, take_office
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from magnetar.storage.metadata.store import pack
from support.servers.coordination import eventually
from support.stores.memory_store import MemoryMetadataStore

Moment = Callable[[], Awaitable[object]]


async def nothing() -> None:
    """No moment."""


class Processes:
    """What ends members. `at_end` runs when the process of a member has ended."""

    def __init__(self) -> None:
        self.at_end: Moment = nothing
        self.ended: list[str] = []
        self.resumed: list[str] = []
        self.erased: list[str] = []
        self.at_erase: Moment = nothing
        self.reason = ""
        """Why no directory can be removed."""

    async def end(self, member: str) -> None:
        self.ended.append(member)
        await self.at_end()

    def resume(self, member: str) -> None:
        self.resumed.append(member)

    async def erase(self, bookie: str) -> str:
        self.erased.append(bookie)
        await self.at_erase()
        return self.reason


class NoTopics:
    async def empty(self, broker: str) -> int:
        return 0


class Members:
    """Two brokers and four bookies of a cluster, and what drains them."""

    def __init__(self, env: Environment, store: MemoryMetadataStore, office: EpochMetadataStore) -> None:
        self.store, self.office = store, office
        self.desired = DesiredMembers(env, office, Settings())
        self.processes = Processes()
        self.drains = Drains(env, self.desired, store, NoTopics())
        self.drains.processes = self.processes

    @property
    def state(self) -> DesiredState:
        assert self.desired.state is not None
        return self.desired.state

    async def start(self) -> None:
        await self.desired.start()
        self.drains.start()

    async def forgotten(self, member: str) -> None:
        """Wait until the record has forgotten a member, and all that follows is done."""
        await eventually(lambda: member not in self.state and member not in self.drains.view())

    async def resumed(self, member: str) -> None:
        await eventually(lambda: member in self.processes.resumed)


@pytest.fixture
async def members() -> AsyncIterator[Members]:
    env = Environment.real()
    store = MemoryMetadataStore()
    await create_cluster(store, "c", 0)
    await store.put(metadata_keys.DESIRED_STATE, DesiredState.of(2, 4).pack(), None)
    for number in range(1, 5):
        await store.put(metadata_keys.bookie(f"bookie-{number}"), pack({"instance": "i"}), None)
    found = Members(env, store, await take_office(store))
    yield found
    await found.drains.close()
    env.close()


async def cookies(store: MemoryMetadataStore) -> list[str]:
    return [key for key, _ in await store.list(metadata_keys.BOOKIES_PREFIX, limit=100)]


async def test_a_drained_broker_may_be_started_again_because_its_number_is_used_again(members: Members) -> None:
    await members.start()
    await members.desired.drain("broker-2")
    await members.forgotten("broker-2")
    assert members.processes.ended == members.processes.resumed == ["broker-2"]
    assert not members.drains.may_run("broker-2")
    await members.desired.scale(2, None)
    assert members.drains.may_run("broker-2")


async def test_a_drained_bookie_is_erased_and_its_cookie_goes(members: Members) -> None:
    await members.start()
    await members.desired.drain("bookie-4")
    await members.forgotten("bookie-4")
    assert members.processes.erased == ["bookie-4"]
    assert members.processes.resumed == []
    assert await cookies(members.store) == [metadata_keys.bookie(f"bookie-{number}") for number in (1, 2, 3)]


@pytest.mark.parametrize("member", ["broker-2", "bookie-4"])
async def test_a_member_that_is_undrained_when_its_process_has_ended_runs_again(members: Members, member: str) -> None:
    await members.start()
    seen: list[bool] = []

    async def undrain() -> None:
        seen.append(members.drains.may_run(member))
        await members.desired.undrain(member)

    members.processes.at_end = undrain
    await members.desired.drain(member)
    await members.resumed(member)
    assert seen == [False], "while it is ended nothing else may start it"
    assert members.processes.erased == []
    assert members.drains.may_run(member)


async def test_nothing_is_erased_of_a_bookie_that_is_undrained_after_the_last_look(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    await members.start()
    forget = members.desired.forget

    async def undrained_before(member: str) -> bool:
        await members.desired.undrain(member)
        return await forget(member)

    monkeypatch.setattr(members.desired, "forget", undrained_before)
    await members.desired.drain("bookie-4")
    await members.resumed("bookie-4")
    assert members.processes.erased == []
    assert "bookie-4" in members.state
    assert metadata_keys.bookie("bookie-4") in await cookies(members.store)


async def test_a_ledger_that_appears_at_the_last_moment_keeps_its_bookie(members: Members) -> None:
    await members.start()
    record = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("bookie-1", "bookie-2", "bookie-4")),))

    async def create_ledger() -> None:
        members.processes.at_end = nothing
        await members.store.put(metadata_keys.ledger(7), record.pack(), None)

    members.processes.at_end = create_ledger
    await members.desired.drain("bookie-4")
    await members.resumed("bookie-4")
    assert members.processes.erased == []
    assert "bookie-4" in members.state.draining
    await members.office.delete(metadata_keys.ledger(7), 0)
    await members.forgotten("bookie-4")
    assert members.processes.erased == ["bookie-4"]


async def test_a_bookie_whose_last_look_failed_runs_again_if_a_ledger_has_appeared(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    await members.start()
    await members.forgotten("nobody")
    record = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("bookie-1", "bookie-2", "bookie-4")),))
    listing = members.store.list

    async def back(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(members.store, "list", listing)
        await members.store.put(metadata_keys.ledger(7), record.pack(), None)
        return await listing(*arguments, **options)

    async def fail_once() -> None:
        members.processes.at_end = nothing

        async def failing(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(members.store, "list", back)
            raise MetadataUnavailable("the database is away")

        monkeypatch.setattr(members.store, "list", failing)

    members.processes.at_end = fail_once
    await members.desired.drain("bookie-4")
    await members.resumed("bookie-4")
    assert members.processes.ended == ["bookie-4"]
    assert members.processes.erased == []
    assert "bookie-4" in members.state.draining and members.drains.may_run("bookie-4")


async def test_a_ledger_that_cannot_be_decoded_keeps_every_bookie_and_says_which_it_is(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = metadata_keys.ledger(7)
    await members.store.put(damaged, b"\xc1", None)
    await members.start()
    await members.desired.drain("bookie-4")
    await eventually(lambda: f"the record with the key {damaged} may name a bookie that drains" in caplog.text)
    assert not members.processes.ended and "bookie-4" in members.state
    await members.office.delete(damaged, None)
    await members.forgotten("bookie-4")
    assert members.processes.erased == ["bookie-4"]


async def test_a_coordinator_erases_what_a_former_one_left(members: Members) -> None:
    await members.store.put(metadata_keys.bookie("bookie-9"), pack({"instance": "i"}), None)
    members.drains.processes = None
    await members.start()
    assert list(members.drains.view()) == ["bookie-9"], "from the first moment on"
    members.drains.processes = members.processes
    await members.forgotten("bookie-9")
    assert members.processes.erased == ["bookie-9"]
    assert metadata_keys.bookie("bookie-9") not in await cookies(members.store)


async def test_a_bookie_drains_until_its_directory_and_its_cookie_are_gone(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    await members.start()
    erasing, deleting, delete = asyncio.Event(), asyncio.Event(), members.office.delete
    members.processes.at_erase = erasing.wait

    async def slow_delete(*arguments: Any) -> None:
        await deleting.wait()
        await delete(*arguments)

    monkeypatch.setattr(members.office, "delete", slow_delete)
    await members.desired.drain("bookie-4")
    await eventually(lambda: members.processes.erased)
    assert "bookie-4" not in members.state and not members.drains.may_run("bookie-4")
    assert members.drains.view() == {"bookie-4": {"left": 0, "most": 0}}
    erasing.set()
    await eventually(lambda: members.drains._erased)
    assert members.drains.view() == {"bookie-4": {"left": 0, "most": 0}}
    assert metadata_keys.bookie("bookie-4") in await cookies(members.store)
    with pytest.raises(NoSuchKey):
        await members.desired.undrain("bookie-4")
    deleting.set()
    await members.forgotten("bookie-4")
    assert metadata_keys.bookie("bookie-4") not in await cookies(members.store)
    assert members.drains.left_over == {} and members.processes.resumed == []


async def test_a_drain_ends_although_the_directory_is_left_and_says_why(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.actors.coordinator.drains.LEFT_OVER_MAX", 1)
    members.processes.reason = "its machine is away"
    await members.store.put(metadata_keys.bookie("bookie-9"), pack({"instance": "i"}), None)
    await members.start()
    await members.forgotten("bookie-9")
    assert members.drains.left_over == {"bookie-9": "its machine is away"}
    await members.desired.drain("bookie-4")
    await members.forgotten("bookie-4")
    assert members.drains.left_over == {"bookie-4": "its machine is away"}, "a bound keeps the last ones"
    assert len(await cookies(members.store)) == 3


async def test_a_bookie_is_erased_although_the_record_forgot_it_without_an_answer(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    await members.start()

    async def forgotten_unnoticed(member: str) -> bool:
        monkeypatch.undo()
        record = await members.store.get(metadata_keys.DESIRED_STATE)
        assert record is not None
        await members.store.put(metadata_keys.DESIRED_STATE, members.state.without(member).pack(), record.version)
        await members.desired.scale(1, None)  # another order reads the record first
        raise MetadataUnavailable("the answer was lost")

    monkeypatch.setattr(members.desired, "forget", forgotten_unnoticed)
    await members.desired.drain("bookie-4")
    await members.forgotten("bookie-4")
    assert members.processes.erased == ["bookie-4"]
    assert len(await cookies(members.store)) == 3


async def test_a_bookie_is_erased_although_its_cookie_cannot_be_deleted_yet(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    await members.start()
    await members.forgotten("nobody")
    forget_cookie = members.desired.forget_cookie
    refused: list[str] = []

    async def once_refused(bookie: str) -> None:
        if not refused:
            refused.append("refused")
            raise MetadataUnavailable("the database is away")
        await forget_cookie(bookie)

    monkeypatch.setattr(members.desired, "forget_cookie", once_refused)
    await members.desired.drain("bookie-4")
    await members.forgotten("bookie-4")
    assert refused and members.processes.erased == ["bookie-4"]
    assert len(await cookies(members.store)) == 3


async def test_a_cluster_without_the_record_has_a_place_for_everybody(members: Members) -> None:
    assert members.drains.may_run("bookie-17")
    await members.start()
    assert not members.drains.may_run("bookie-17")
    assert members.drains.may_run("bookie-3")
