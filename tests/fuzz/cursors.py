"""Target: where subscriptions are. The packed state of a cursor, the entries of a cursor's ledger, and whatever clients
acknowledge, in any order, against a plain set of acknowledged entries.
"""

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from magnetar.protocol.ack_sets import words_to_bits
from magnetar.protocol.bookie_wire import LedgerEntry
from magnetar.protocol.errors import MetadataError
from magnetar.protocol.message_id import Position
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.cursor_storage import read_last, split

from .loop import run
from .mutation import make_odd, mutate
from .records import pack_odd
from .target import Target, Wrong, quietly

_PART_BYTES = 20


def _make_chain() -> LedgerChain:
    return LedgerChain(
        [
            LedgerInfo(3, 0, 5, 500, True),
            LedgerInfo(4, 0, 0, 0, True),
            LedgerInfo(7, 0, 3, 300, True),
            LedgerInfo(9, 0, 6, 600),
        ]
    )


def _positions(chain: LedgerChain) -> Iterator[Position]:
    for info in chain.infos:
        for entry_id in range(info.entries):
            yield (info.ledger_id, entry_id)


def _check(state: CursorState, chain: LedgerChain, done: set[Position]) -> None:
    """The state against the entries that were acknowledged, and against itself."""
    everything = list(_positions(chain))
    for position in everything:
        if state.is_acknowledged(position) is not (position in done):
            raise Wrong(f"{position} is {'not ' * (position in done)}acknowledged, the mark is at {state.mark_delete}")
    left = [position for position in everything if position not in done]
    if state.backlog_entries() != len(left):
        raise Wrong(f"a backlog of {state.backlog_entries()} entries, {len(left)} are left")
    for position in everything:
        found = state.next_unacknowledged(position)
        if found in done or found != next((one for one in left if one >= position), found):
            raise Wrong(f"{found} is not the first behind {position} that is not acknowledged")
    if left and state.first_unacknowledged != left[0]:
        raise Wrong(f"the mark is at {state.mark_delete}, and {left[0]} is the first that is left")


def _reopened(state: CursorState, chain: LedgerChain) -> CursorState:
    packed = state.pack()
    again = CursorState.unpack(packed, chain)
    if again.pack() != packed:
        raise Wrong("a state is not what it was")
    return again


# ---- The packed state ----


def make_state(random: Random) -> bytes:
    chain, value = _make_chain(), None
    state = CursorState(chain, random.choice([(-1, -1), (3, 1), (4, -1), (9, 1), (9, 5)]), {"a": "b"})
    everything = list(_positions(chain))
    state.acknowledge(random.sample(everything, random.randrange(8)))
    for position in random.sample(everything, 2):
        state.acknowledge_batch_index(position, [random.getrandbits(3)], 3)
    value = copy.deepcopy(unpack(state.pack()))
    if random.random() < 0.5 and value["ranges"]:
        flat = random.choice(value["ranges"])[1]
        flat += [random.randrange(-2, 9), random.choice((-3, -1, 0, 1, 1 << 40))]
    for _ in range(random.choice((0, 0, 1, 2))):
        make_odd(value, random)
    data = pack_odd(value)
    return mutate(data, random) if random.random() < 0.2 else data


def take_state(data: bytes) -> None:
    """Only what the bytes say is acknowledged, or MetadataError."""
    chain = _make_chain()
    state: Any = quietly(CursorState.unpack, data, chain, allowed=(MetadataError,))
    if state is None:
        return
    value: Any = unpack(data)
    mark = (int(value["mark"][0]), int(value["mark"][1]))
    done = {position for position in _positions(chain) if position <= mark}
    for ledger_id, flat in value["ranges"]:
        for first, more in zip(flat[::2], flat[1::2], strict=True):
            last = int(first) + int(more)
            done |= {one for one in _positions(chain) if one[0] == int(ledger_id) and int(first) <= one[1] <= last}
    _check(state, chain, done)
    for position in _positions(chain):
        state.batches.ack_set(position)
    _check(_reopened(state, chain), chain, done)


# ---- A cursor's ledger ----


class _Ledger:
    """Reads from a list of bodies."""

    ledger_id = 5

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies

    async def read(self, first: int, last: int, entries_max: int) -> list[LedgerEntry]:
        return (await self.read_all(first, last))[:entries_max]

    async def read_all(self, first: int, last: int) -> list[LedgerEntry]:
        if not 0 <= first <= last < len(self._bodies):
            raise Wrong(f"the ledger has no entries {first} to {last}")
        return [LedgerEntry(5, 0, number, -1, 0, self._bodies[number]) for number in range(first, last + 1)]


def make_ledger(random: Random) -> bytes:
    bodies: list[bytes] = []
    for number in range(random.randrange(4)):
        bodies += split(bytes([65 + number]) * random.randrange(70), _PART_BYTES)
    for _ in range(random.choice((0, 0, 1, 2))):
        if bodies:
            at = random.randrange(len(bodies))
            match random.randrange(5):
                case 0:
                    del bodies[at:]
                case 1:
                    del bodies[at]
                case 2:
                    bodies[at] = mutate(bodies[at], random)
                case 3:
                    bodies.insert(at, random.choice(bodies))
                case _:
                    value: list[Any] = [0, 1, b"piece"]
                    make_odd(value, random)
                    bodies[at] = pack_odd(value)
    return pack(bodies)


async def _take_ledger(data: bytes) -> None:
    """The last snapshot of which all parts are there comes back, as it was; never one made up of several."""
    try:
        bodies = unpack(data)
    except Exception:
        return  # not an input of this target
    if not isinstance(bodies, list) or not all(isinstance(body, bytes) for body in bodies):
        return
    try:
        found = await read_last(_Ledger(bodies), len(bodies) - 1)  # type: ignore[arg-type]
    except MetadataError:
        return
    whole = [b"".join(piece for _, _, piece in run) for run in _runs(bodies)]
    if found is not None and found.snapshot not in whole:
        raise Wrong(f"{found!r} was never written")
    if found is None and whole:
        raise Wrong(f"{whole[-1]!r} was written, and is passed over")


def _runs(bodies: list[bytes]) -> list[list[Any]]:
    """Snapshots whose parts follow each other without a gap."""
    parts: list[Any] = []
    for body in bodies:
        try:
            part, count, piece = unpack(body)
            parts.append([int(part), int(count), bytes(piece)])
        except Exception:
            parts.append(None)
    return [
        parts[start : start + parts[start][1]]
        for start in range(len(parts))
        if parts[start] is not None
        and parts[start][0] == 0
        and 0 < parts[start][1] <= len(parts) - start
        and all(
            part is not None and part[:2] == [number, parts[start][1]]
            for number, part in enumerate(parts[start : start + parts[start][1]])
        )
    ]


# ---- Acknowledgements ----


def take_acknowledgements(data: bytes) -> None:
    """Four bytes each: what is done, a ledger, an entry, an argument."""
    chain = _make_chain()
    state = CursorState(chain, (-1, -1))
    done: set[Position] = set()
    open_messages: dict[Position, int] = {}
    for start in range(0, min(len(data), 400) // 4 * 4, 4):
        what, ledger, entry, argument = data[start : start + 4]
        position = ((3, 4, 7, 9, 10, 2)[ledger % 6], entry % 12 - 1)
        exists = chain.contains(position)
        match what % 7:
            case 0 | 1:
                state.acknowledge([position])
                done |= {position} if exists else set()
            case 2:
                changed = state.acknowledge_cumulative(position)
                if changed and position > chain.last_confirmed:
                    raise Wrong("what is not there yet was acknowledged")
                done |= {one for one in _positions(chain) if one <= position} if changed else set()
            case 3:
                bits = words_to_bits([argument - 128])
                state.acknowledge_batch_index(position, [argument - 128], 5)
                if exists and position not in done:
                    open_messages[position] = open_messages.get(position, 31) & bits
                    done |= {position} if not open_messages[position] else set()
            case 4:
                chain.grow(chain.infos[-1], chain.infos[-1].entries + argument % 3 - 1, 100)
            case 5 if argument % 4 == 0:
                position = min(position, chain.next_position(chain.last_confirmed))  # as `Cursor.reset` does
                state.reset(position)
                state.skip_missing()
                done = {one for one in _positions(chain) if one < position}
                open_messages.clear()
            case 6 if argument % 8 == 0 and len(chain.infos) > 1:
                gone = chain.infos[0].ledger_id
                chain.remove([gone])
                state.skip_missing()
            case _:
                state = _reopened(state, chain)
        open_messages = {one: bits for one, bits in open_messages.items() if one not in done}
        _check(state, chain, done)


_KINDS: list[tuple[Callable[[Random], bytes], Callable[[bytes], None]]] = [
    (make_state, take_state),
    (make_ledger, lambda data: run(_take_ledger(data))),
    (lambda random: random.randbytes(4 * random.randint(1, 60)), take_acknowledgements),
]


def make(random: Random) -> bytes:
    which = random.randrange(len(_KINDS))
    return bytes([which]) + _KINDS[which][0](random)


def take(data: bytes) -> None:
    if data:
        _KINDS[data[0] % len(_KINDS)][1](data[1:])


TARGETS = [Target("cursors", make, take)]
