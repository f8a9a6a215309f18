"""The desired state in the hands of the active coordinator: read once, changed one at a time, told to listeners.

Each change is a compare-and-set of the record under the coordinator's epoch. `CertainRecords` settles one whose outcome
is unknown: listeners are told as soon as it turns out to be stored, or it can never be stored. A cluster without the
record has no supervisor that looks at it: changes are refused.

`leaving` are members whose Ray node is about to go. They are treated like those that drain, for as long as the node is
there, and the record does not know of them.

`retired` are bookies that the record has forgotten and whose cookie is still in the metadata. Their directories may not
be empty yet. A coordinator that begins finds them by their cookies.
"""

import asyncio
from collections.abc import Callable, Iterable

from ...protocol.errors import ClusterError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import CertainRecords, remove_record
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.registered_bookies import registered_bookies
from ...storage.metadata.store import Versioned
from .record import DesiredState


class DesiredMembers:
    """See the module. Listeners of `on_change` are called after each change, also of `leaving`."""

    def __init__(self, env: Environment, store: EpochMetadataStore, settings: Settings) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.state: DesiredState | None = None
        self.leaving: frozenset[str] = frozenset()
        self.retired: dict[str, None] = {}
        self._env = env
        self._store = store
        self._needed = settings.ensemble_size
        self.version = 0
        """Of the record, as far as this coordinator knows."""
        self._changing = asyncio.Lock()
        self._stored = CertainRecords(
            env,
            store,
            "desired-state",
            changing=lambda key: self._changing,
            key_of=str,
            version_of=self._version_of,
            take=self._settled,
        )

    async def start(self) -> None:
        """Read the record and the cookies. Raises MetadataUnavailable, MetadataError."""
        await self._read()
        if self.state is not None:
            cookies = await registered_bookies(self._store)
            self.retired = {bookie: None for bookie in cookies if bookie not in self.state}

    async def close(self) -> None:
        """End what is under way."""
        await self._stored.close()

    @property
    def emptied(self) -> frozenset[str]:
        """Members that get nothing new: those that drain, and those that leave."""
        draining: frozenset[str] = self.state.draining if self.state is not None else frozenset()
        return self.leaving | draining

    def set_leaving(self, members: Iterable[str]) -> None:
        """These members are on nodes that are about to go."""
        leaving = frozenset(members)
        if leaving != self.leaving:
            self.leaving = leaving
            self._tell()

    # -- changes -------------------------------------------------------------------------------------------------------

    async def scale(self, brokers: int | None, bookies: int | None) -> DesiredState:
        """See `DesiredState.scaled`. Raises NotAllowedError, and what the store raises."""
        return await self._change(lambda state: state.scaled(brokers, bookies, self._needed))

    async def drain(self, member: str) -> DesiredState:
        """See `DesiredState.drained`. Raises NoSuchKey, NotAllowedError, and what the store raises."""
        return await self._change(lambda state: state.drained(member, self._needed))

    async def undrain(self, member: str) -> DesiredState:
        """See `DesiredState.undrained`. Raises NoSuchKey, and what the store raises."""
        return await self._change(lambda state: state.undrained(member))

    async def forget(self, member: str) -> bool:
        """A member that was drained has ended. A bookie is `retired` until `forget_cookie`.

        Returns whether the record has forgotten it. It has not when the member was undrained meanwhile. Raises what the
        store raises.
        """
        state = await self._change(lambda state: state.without(member) if member in state.draining else state)
        return member not in state

    async def forget_cookie(self, bookie: str) -> None:
        """Delete the cookie of a retired bookie, as the last of what there is of it. Raises what the store raises."""
        await remove_record(self._env, self._store, metadata_keys.bookie(bookie))
        self.retired.pop(bookie, None)

    async def _change(self, change: Callable[[DesiredState], DesiredState]) -> DesiredState:
        async with self._changing:
            await self._read()
            before = self._require()
            wanted = change(before)
            if wanted != before:
                self.version = await self._stored.put(metadata_keys.DESIRED_STATE, wanted.pack(), self.version)
                self._take(wanted)
        self._tell()
        return wanted

    async def _read(self) -> None:
        record = await self._store.get(metadata_keys.DESIRED_STATE)
        if record is not None:
            self._take(DesiredState.unpack(record.value))
            self.version = record.version

    def _version_of(self, key: str) -> int:
        return self.version

    def _settled(self, key: str, found: Versioned | None) -> None:
        """It is known what became of a change that was in doubt."""
        if found is not None:
            self._take(DesiredState.unpack(found.value))
            self.version = found.version
            self._tell()

    def _take(self, state: DesiredState) -> None:
        """The record is so now. A bookie is retired as soon as this coordinator knows that the record forgot it."""
        if self.state is not None:
            self.retired |= {bookie: None for bookie in self.state.bookie_ids if bookie not in state}
        self.state = state

    def _require(self) -> DesiredState:
        if self.state is None:
            raise ClusterError("this cluster has no record of what should run: start it again with `magnetar start`")
        return self.state

    def _tell(self) -> None:
        for listener in list(self.on_change):
            listener()
