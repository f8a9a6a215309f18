"""A member's link to the coordinator: one connection, kept up, with a session on it once the member registers.

What it holds is the coordinator's last word: live bookies and brokers, who owns which slot. Pushes replace it, and a
reconnect replaces it as a whole. Without a connection it stays as it is, and members continue to use it.

`TRANSITIONS` has the states. From CONNECTED on, metadata and questions work. After `register` was called once, the link
registers again after each reconnect, by itself. When the coordinator declares the session over or finally refuses the
member, the listeners of `on_session_lost` are called. A broker then starts again with another incarnation and another
client.

A coordinator's epoch never goes back: one with a lower epoch than seen before was superseded, and is left at once.
`SlotView` has the rules for slots. When it misses a change the link asks for the whole listing again.

Who owns which slot, as a member knows it: a copy of the coordinator's table, for look-ups without a question.

States, by what the view has of the present coordinator's word:

| state | what it answers | ends with |
| --- | --- | --- |
| listing | as before, and it keeps changes back | the listing: *complete* |
| complete | the coordinator's word, up to `number` | a new connection (`listing_began`): *listing*; a gap: *gapped* |
| gapped | as before | the next listing |

- Each change has the next number. The listing has the number of the last change that is in it. Changes that arrive
  before the listing are kept back, at most `KEPT_BACK_MAX`; those that are not in it follow it.
- A change with another number than the next one was lost, or comes twice. An older one is passed over. A gap is never
  bridged: the changes behind it are passed over, and the caller asks for a new listing.
- An owner is never replaced by one with a lower epoch. A listing of a coordinator that was superseded cannot bring an
  old owner back. It takes the rest.

Without a connection the view stays as it is.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...protocol.cluster_status import MemberData, MemberReport
from ...protocol.errors import (
    CookieMismatch,
    CoordinatorUnavailable,
    HandshakeRefused,
    MagnetarError,
    ProtocolError,
    RpcDisconnected,
    RpcTimeout,
    StaleEpoch,
)
from ...protocol.names import COORDINATOR_ID, VERSION
from ...protocol.slots import SLOTS_DEFAULT, is_slot_count, slot_of
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.rpc.connection import CALL_TIMEOUT_S, Locate, RpcConnection, RpcService, rpc_connect
from ...runtime.rpc.contract import CALLER, handlers_of
from ...runtime.rpc.finder import ServerFinder
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.rpc.messages import pack
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.metadata.remote import RemoteMetadataStore
from ...storage.metadata.slot_rows import UNOWNED, SlotEntry, SlotRows
from .contracts_coordinator import (
    BrokerInfo,
    CoordinatorContract,
    MemberContract,
    NamespacePolicies,
    PolicyPage,
    SlotListing,
    TopicChange,
)
from .feeds import NO_FEEDS, Feeds, KnownTopics, PolicyFeed
from .permissions import OP_HEARTBEAT

logger = logging.getLogger(__name__)


class CoordinatorPushes(RpcService, MemberContract):
    """What the coordinator tells a member over the member's link.

    Each push carries the coordinator's epoch. One of a coordinator that was superseded ends the connection.

    `client` is the link that the pushes come over.
    """

    contract = MemberContract

    def __init__(self, client: "CoordinatorClient") -> None:
        self.handlers = handlers_of(MemberContract, self)
        self._client = client

    def _current(self, caller: RpcConnection, epoch: int) -> bool:
        if epoch >= self._client.epoch:
            return True
        caller.close(StaleEpoch(f"the coordinator sent a push with epoch {epoch} after epoch {self._client.epoch}"))
        return False

    def bookies_changed(self, *, epoch: int, bookies: list[BookieInfo], caller: RpcConnection = CALLER) -> None:
        if self._current(caller, epoch):
            self._client.take_bookies(bookies)

    def brokers_changed(self, *, epoch: int, brokers: list[BrokerInfo], caller: RpcConnection = CALLER) -> None:
        if self._current(caller, epoch):
            self._client.take_brokers(brokers)

    def slots_changed(self, *, epoch: int, number: int, rows: bytes, caller: RpcConnection = CALLER) -> None:
        if self._current(caller, epoch):
            try:
                self._client.take_slots(number, rows)
            except ProtocolError as error:  # without this change the member needs the whole listing again
                caller.close(error)

    def policies_changed(self, *, epoch: int, changes: list[NamespacePolicies], caller: RpcConnection = CALLER) -> None:
        if self._current(caller, epoch):
            try:
                if self._client.feeds.policies is not None:
                    self._client.feeds.policies.take(changes)
            except ProtocolError as error:  # without this change the member needs the whole listing again
                caller.close(error)

    def partitions_changed(self, *, epoch: int, topic: str, partitions: int, caller: RpcConnection = CALLER) -> None:
        if self._current(caller, epoch):
            self._client.known_topics.changed(topic, partitions)

    def topics_changed(
        self, *, epoch: int, namespace: str, number: int, changes: list[TopicChange], caller: RpcConnection = CALLER
    ) -> None:
        if self._current(caller, epoch) and self._client.feeds.topics is not None:
            self._client.feeds.topics.take(namespace, number, changes)


KEPT_BACK_MAX = 1000
"""Changes that wait for a listing. One more, and another listing is needed."""


class ViewState(enum.Enum):
    """See the module and `VIEW_TRANSITIONS`."""

    LISTING = enum.auto()
    COMPLETE = enum.auto()
    GAPPED = enum.auto()


VIEW_TRANSITIONS: Mapping[ViewState, Collection[ViewState]] = {
    ViewState.LISTING: (
        ViewState.COMPLETE,  # the listing is here, and no change is missing behind it
        ViewState.GAPPED,  # the listing is here, and a change behind it is missing
    ),
    ViewState.COMPLETE: (
        ViewState.LISTING,  # the member registers over a new connection
        ViewState.GAPPED,  # a change did not have the next number
    ),
    ViewState.GAPPED: (
        ViewState.LISTING,  # a new listing was asked for
    ),
}


class SlotView:
    """See the module. What `take_listing` and `take_changes` return is what is different now."""

    def __init__(self, slots: int) -> None:
        assert is_slot_count(slots)
        self.slots = slots
        self.state = ViewState.LISTING
        self.number = 0
        self._entries = [UNOWNED] * slots
        self._exceptions: dict[str, SlotEntry] = {}
        self._kept_back: dict[int, SlotRows] = {}

    def entry_of(self, topic: TopicName) -> SlotEntry:
        """Who owns a partition or plain topic."""
        entry = self._entries[slot_of(topic, self.slots)]
        if self._exceptions:
            exception = self._exceptions.get(topic.full)
            if exception is not None and exception.epoch > entry.epoch:
                return exception
        return entry

    def get(self, slot: int) -> SlotEntry:
        return self._entries[slot]

    @property
    def exceptions(self) -> Mapping[str, SlotEntry]:
        """By the full name of the topic."""
        return self._exceptions

    def listing_began(self) -> None:
        """From here on changes belong to the listing that is asked for."""
        if self.state is not ViewState.LISTING:
            self._become(ViewState.LISTING)
        self._kept_back = {}

    def take_listing(self, number: int, rows: SlotRows) -> SlotRows:
        """The whole table as it was behind change `number`, then the changes that were kept back."""
        entries, exceptions = self._replace(rows.entries, dict(rows.exceptions))
        for topic in [topic for topic in self._exceptions if topic not in rows.exceptions]:
            exceptions[topic] = SlotEntry(None, self._exceptions.pop(topic).epoch)
        self.number = number
        self._become(ViewState.COMPLETE)
        kept_back, self._kept_back = self._kept_back, {}
        for one in sorted(kept_back):
            changed = self.take_changes(one, kept_back[one])
            entries.update(changed.entries)
            exceptions.update(changed.exceptions)
        return SlotRows(entries, exceptions)

    def take_changes(self, number: int, rows: SlotRows) -> SlotRows:
        """The change with this number. Look at `state` afterwards: GAPPED says that a listing is needed."""
        if self.state is ViewState.LISTING:
            if len(self._kept_back) < KEPT_BACK_MAX:
                self._kept_back[number] = rows
            # else the number is missing behind the listing
        elif self.state is ViewState.COMPLETE and number > self.number + 1:
            self._become(ViewState.GAPPED)
        elif self.state is ViewState.COMPLETE and number == self.number + 1:
            self.number = number
            return SlotRows(*self._replace(rows.entries, rows.exceptions))
        return SlotRows()

    def _replace(
        self, entries: Mapping[int, SlotEntry], exceptions: Mapping[str, SlotEntry]
    ) -> tuple[dict[int, SlotEntry], dict[str, SlotEntry]]:
        changed = {slot: one for slot, one in entries.items() if one.epoch > self._entries[slot].epoch}
        for slot, one in changed.items():
            self._entries[slot] = one
        others: dict[str, SlotEntry] = {}
        for topic, one in exceptions.items():
            before = self._exceptions.get(topic)
            if one.owner is None:
                if before is not None:
                    del self._exceptions[topic]
                    others[topic] = one
            elif before is None or one.epoch > before.epoch:
                self._exceptions[topic] = others[topic] = one
        if changed and self._exceptions:
            for topic, one in list(self._exceptions.items()):
                slot = slot_of(TopicName.parse(topic), self.slots)
                if slot in changed and one.epoch <= changed[slot].epoch:
                    others[topic] = SlotEntry(None, self._exceptions.pop(topic).epoch)
        return changed, others

    def _become(self, state: ViewState) -> None:
        check_transition(VIEW_TRANSITIONS, "the view of the slots", self.state, state)
        self.state = state


COORDINATOR_FRAME_SIZE_MAX = 64 << 20
CONNECT_TIMEOUT_S = 2.0
RECONNECT_INITIAL_S = 0.05
RECONNECT_MAX_S = 1.0
CALLS_UNDER_WAY_MAX = 512
"""Questions that may wait for their answer at a time (assignments can take seconds). Well below the number at which
the coordinator stops reading from a connection, so that metadata and heartbeats always get through.
"""

Description = MemberData | Callable[[], MemberData]
"""What a member says of itself as it registers, or what gives it."""


class LinkState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    CONNECTED = enum.auto()
    REGISTERED = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[LinkState, Collection[LinkState]] = {
    LinkState.CONNECTING: (
        LinkState.CONNECTED,  # the coordinator has said its epoch, and registered this member if it has to
        LinkState.ENDED,  # the coordinator declared this session over or finally refuses this member; or `close`
    ),
    LinkState.CONNECTED: (
        LinkState.REGISTERED,  # the coordinator has registered this member, and the lists are here
        LinkState.CONNECTING,  # the connection ended, or heartbeats stayed unanswered for `session_timeout_s`
        LinkState.ENDED,  # as above
    ),
    LinkState.REGISTERED: (
        LinkState.CONNECTING,  # as above
        LinkState.ENDED,
    ),
    LinkState.ENDED: (),
}


class _Registration(NamedTuple):
    host: str
    port: int
    data: Description


class CoordinatorClient:
    """See the module. Node id, role and incarnation are those of `identity`.

    `locate` finds the coordinator and raises CoordinatorUnavailable. `feeds` are told what the coordinator says.
    """

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        settings: Settings,
        locate: Locate,
        feeds: Feeds = NO_FEEDS,
    ) -> None:
        self.identity = identity
        self.state = LinkState.CONNECTING
        self.epoch = 0
        self.bookies = BookieDirectory()
        self.ask = CoordinatorContract(self.call)
        """The methods of the coordinator; each raises like `call`."""
        self.brokers: dict[str, BrokerInfo] = {}
        """Live brokers by id."""
        self.slots = SlotView(SLOTS_DEFAULT)
        """Who owns which slot; complete once the member is registered."""
        self.known_topics = KnownTopics()
        self.on_bookies: list[Callable[[], None]] = []
        self.on_brokers: list[Callable[[], None]] = []
        self.on_session_lost: list[Callable[[], None]] = []
        self.report: MemberReport = {}
        """Travels with the next heartbeat: a bookie's `writable` and `disk`, a broker's `topics`, …"""
        self.metadata = RemoteMetadataStore(self._metadata_connection)
        self._env = env
        self._settings = settings
        self.feeds = feeds
        connect = partial(
            rpc_connect,
            env,
            identity=identity,
            keys=keys,
            service=CoordinatorPushes(self),
            expected_node_id=COORDINATOR_ID,
            frame_size_max=COORDINATOR_FRAME_SIZE_MAX,
            timeout_s=CONNECT_TIMEOUT_S,
        )
        self._finder = ServerFinder(locate, connect)
        self._connection: RpcConnection | None = None
        self._registration: _Registration | None = None
        self._registered = asyncio.Event()
        self._connected = asyncio.Event()
        self._fatal: MagnetarError | None = None
        """Why it is ENDED, if not by `close`."""
        self._permits = asyncio.Semaphore(CALLS_UNDER_WAY_MAX)
        self._tasks = Tasks()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connect, and keep connecting from then on.

        Raises HandshakeRefused (another cluster, a wrong key) or CoordinatorUnavailable after `timeout_s`.
        """
        self._tasks.spawn(self._run(), f"coordinator-client-{self.identity.node_id}")
        await self._wait(self._connected, timeout_s)

    async def register(
        self,
        host: str,
        port: int,
        data: Description | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Become a member: `host` and `port` of the main socket, `data` for others to see, or what gives it.

        A broker's `data` holds `url` (`pulsar://host:port`) and `rpc` ([host, port] of its internal RPC), a bookie's
        `instance` (of its cookie), `writable` and `ledgers_end` (see `ledger_ids`).

        Returns when the lists and the owners of slots are here; repeated after
        each reconnect. Raises StaleEpoch (this incarnation was declared over), CookieMismatch, CoordinatorUnavailable.
        """
        self._registration = _Registration(host, port, data or {})
        connection = self._connection
        if connection is not None:
            try:
                await self._register(connection)
                if connection is self._connection and self.state is LinkState.CONNECTED:
                    self._become(LinkState.REGISTERED)
            except (RpcDisconnected, RpcTimeout):
                logger.info("the connection to the coordinator ended during the registration, which is tried again")
        await self._wait(self._registered, timeout_s)

    async def call(self, method: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: object) -> Any:
        """Carry a call of `ask` to the coordinator. Raises its error; CoordinatorUnavailable when it does not answer
        (the call may have been carried out).
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._permits.acquire()
        except TimeoutError:
            raise CoordinatorUnavailable(
                f"too many calls wait for the coordinator, so {method} was not sent: try again"
            ) from None
        try:
            connection = self._connection
            if connection is None:
                raise CoordinatorUnavailable("the coordinator is not connected: try again")
            left_s = deadline - asyncio.get_running_loop().time()
            return await connection.call(method, timeout_s=left_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise CoordinatorUnavailable(f"the coordinator did not answer {method}: {error}") from error
        finally:
            self._permits.release()

    async def close(self) -> None:
        """End the session and the connection."""
        await self._tasks.close()
        if self.state is not LinkState.ENDED:
            self._become(LinkState.ENDED)
        await self.metadata.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.wait_closed()

    def _become(self, state: LinkState) -> None:
        check_transition(TRANSITIONS, f"the link of {self.identity.node_id}", self.state, state)
        self.state = state
        if state is LinkState.REGISTERED:
            if self.feeds.topics is not None:
                self.feeds.topics.registered()
            if self.feeds.owned is not None:
                self.feeds.owned.registered()

    # -- the connection ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(self._env.random, RECONNECT_INITIAL_S, RECONNECT_MAX_S)
        while self.state is not LinkState.ENDED:
            try:
                await self._connect()
                backoff.reset()
                await self._beat()
            except (StaleEpoch, HandshakeRefused, CookieMismatch) as error:
                if self._is_fatal(error):
                    self._end(error)
                    return
                logger.warning("the coordinator refused this process: %s", error)
            except (MagnetarError, OSError) as error:
                logger.info("the coordinator cannot be reached: %s", error)
            except Exception:
                logger.exception("the link to the coordinator failed unexpectedly and is opened again")
            finally:
                self._disconnect()
            await asyncio.sleep(backoff.next_delay_s())

    def _is_fatal(self, error: MagnetarError) -> bool:
        # If another process reused the port, the address is looked up again. A refusal before the first connection is
        # final.
        return not (isinstance(error, HandshakeRefused) and self._connected.is_set() and self.epoch)

    def _end(self, error: MagnetarError) -> None:
        self._become(LinkState.ENDED)
        self._fatal = error
        self._connected.set()
        self._registered.set()
        logger.warning("%s lost its session: %s", self.identity.node_id, error)
        for listener in list(self.on_session_lost):
            listener()

    async def _connect(self) -> None:
        connection = await self._finder.connect()
        try:
            await self._greet(connection)
            registers = self._registration is not None
            if registers:
                await self._register(connection)
        except BaseException:
            self._finder.forget()
            connection.close()
            raise
        self._connection = connection
        self._become(LinkState.CONNECTED)
        if registers:
            self._become(LinkState.REGISTERED)
        self._connected.set()

    async def _greet(self, connection: RpcConnection) -> None:
        greeting = await CoordinatorContract(connection.call, timeout_s=CONNECT_TIMEOUT_S).hello()
        self._take_epoch(greeting.epoch)
        if not is_slot_count(greeting.slots):
            raise ProtocolError(f"the cluster cannot have {greeting.slots} slots")
        if greeting.slots != self.slots.slots:
            self.slots = SlotView(greeting.slots)

    def _take_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise RpcDisconnected(
                f"this coordinator has epoch {epoch}, but a coordinator with epoch {self.epoch} has superseded it"
            )
        self.epoch = epoch

    async def _register(self, connection: RpcConnection) -> None:
        assert self._registration is not None
        host, port, data = self._registration
        coordinator = CoordinatorContract(connection.call)
        policies = self.feeds.policies
        if policies is not None:
            policies.listing_began()
        self.slots.listing_began()
        about_process: MemberData = {"version": VERSION, "launch": self._env.launch}
        described: MemberData = {**about_process, **(data() if callable(data) else data)}
        answer = await coordinator.register(role=self.identity.role, host=host, port=port, data=described)
        self._take_epoch(answer.epoch)
        self.known_topics.clear()  # nobody told of changes meanwhile
        if policies is not None:  # before slots: a topic must not load without its policies
            await _take_policies(policies, coordinator, answer.policies)
        self.take_bookies(answer.bookies)
        self.take_brokers(answer.brokers)
        listing = answer.slots
        while listing is not None:
            self._take_listing(listing)
            listing = None
            if self.slots.state is ViewState.GAPPED:  # a change was lost behind the listing
                self.slots.listing_began()
                listing = await coordinator.slot_listing()
        self._registered.set()

    async def _beat(self) -> None:
        """Send heartbeats until the connection ends; raises RpcDisconnected when they stay unanswered."""
        connection = self._connection
        assert connection is not None
        interval_s = self._settings.heartbeat_interval_s
        unanswered_max = max(2, round(self._settings.session_timeout_s / interval_s))
        ended = asyncio.Event()
        connection.on_close.append(lambda closed: ended.set())
        payload = b""
        report: MemberReport | None = None
        unanswered = 0

        def answered(status: int, answer: bytes) -> None:
            nonlocal unanswered
            unanswered = 0

        while not ended.is_set() and not connection.closed:
            if report != self.report:
                report = self.report.copy()
                payload = pack(report)
            # Counted in heartbeats, not seconds: a process that was paused cannot blame the coordinator for it.
            if unanswered >= unanswered_max:
                connection.close(RpcTimeout("the coordinator does not answer heartbeats"))
                break
            unanswered += 1
            connection.request(OP_HEARTBEAT, (payload,), answered)
            try:
                async with asyncio.timeout(interval_s):
                    await ended.wait()
            except TimeoutError:
                continue
        raise RpcDisconnected("the connection to the coordinator ended") from connection.close_reason

    def _metadata_connection(self) -> RpcConnection | None:
        """Raises StaleEpoch once this incarnation is over, so that no caller waits for a connection in vain."""
        if isinstance(self._fatal, StaleEpoch):
            raise StaleEpoch(f"the session of {self.identity.node_id} has ended")
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if self.state in (LinkState.CONNECTED, LinkState.REGISTERED):
            self._become(LinkState.CONNECTING)
        if self.state is LinkState.CONNECTING:
            self._registered.clear()
        if connection is not None and not connection.closed:
            connection.close()

    async def _wait(self, event: asyncio.Event, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            raise CoordinatorUnavailable(f"no coordinator answered within {timeout_s} s") from None
        if self._fatal is not None:
            raise self._fatal

    # -- the coordinator's word ----------------------------------------------------------------------------------

    def take_bookies(self, bookies: list[BookieInfo]) -> None:
        self.bookies.update(bookies)
        for listener in list(self.on_bookies):
            listener()

    def take_brokers(self, brokers: list[BrokerInfo]) -> None:
        self.brokers = {broker.id: broker for broker in brokers}
        for listener in list(self.on_brokers):
            listener()

    def take_slots(self, number: int, rows: bytes) -> None:
        """A change of slots. Raises ProtocolError for a malformed one."""
        complete = self.slots.state is ViewState.COMPLETE
        self._slots_changed(self.slots.take_changes(number, SlotRows.unpack(rows, self.slots.slots)))
        if complete:
            self._close_gap()

    def _take_listing(self, listing: SlotListing) -> None:
        rows = SlotRows.unpack(listing.rows, self.slots.slots)
        self._slots_changed(self.slots.take_listing(listing.number, rows))

    def _slots_changed(self, changed: SlotRows) -> None:
        if self.feeds.owned is not None and (changed.entries or changed.exceptions):
            self.feeds.owned.slots_changed(changed)

    def _close_gap(self) -> None:
        if self.slots.state is ViewState.GAPPED and self._connection is not None:
            logger.warning("%s missed a change of slots, and asks for all of them", self.identity.node_id)
            self.slots.listing_began()
            self._tasks.spawn(self._list_slots(self._connection), "slots-listing")

    async def _list_slots(self, connection: RpcConnection) -> None:
        backoff = Backoff(self._env.random, RECONNECT_INITIAL_S, RECONNECT_MAX_S)
        while connection is self._connection and not connection.closed:
            try:
                listing = await CoordinatorContract(connection.call).slot_listing()
                if connection is self._connection:
                    self._take_listing(listing)
                    self._close_gap()
                return
            except RpcTimeout as error:
                logger.info("the listing of slots did not come, and is asked for again: %s", error)
                await asyncio.sleep(backoff.next_delay_s())
            except MagnetarError as error:
                connection.close(error)  # the next registration lists them
                return


async def _take_policies(feed: PolicyFeed, coordinator: CoordinatorContract, page: PolicyPage) -> None:
    """The first page and those that follow. Raises ProtocolError for malformed ones."""
    feed.take(page.items)
    while page.more and page.items:
        page = await coordinator.policies(after=page.items[-1].namespace)
        feed.take(page.items)
    feed.listing_ended()
