"""Targets: both ends of the internal RPC, and a bookie behind it.

`rpc`: a stranger's bytes at a listening end, during the handshake or after a proven one, and a listening end's bytes at
a caller. `bookie`: a proven peer asks a bookie anything; what the bookie stored before it still answers byte for byte.
"""

import asyncio
from random import Random
from typing import Any

from magnetar.actors.bookie.service import BookieService
from magnetar.protocol.bookie_wire import (
    BookieOp,
    BookieStatus,
    decode_entry,
    decode_read_answer,
    encode_ledger,
    encode_read,
)
from magnetar.protocol.errors import BadVersion, MagnetarError, RpcDisconnected, RpcTimeout
from magnetar.protocol.rpc_frames import KIND_NOTIFY, KIND_REQUEST, KIND_RESPONSE
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc import handshake as rpc_handshake
from magnetar.runtime.rpc.connection import Identity, RpcConnection, RpcConnectionState, RpcService
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.rpc.messages import pack
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie.replay import format_directory
from magnetar.storage.bookie.store import BookieStore
from support.files.faulty_files import FaultyFiles
from support.files.rpc_frames import encode_frame_header
from support.servers.open_rpc import OpenService
from support.stores.bookie_kit import DIRECTORY, INSTANCE, add_payload, body_of

from .loop import MemoryTransport, make_env, run, turns
from .mutation import make_odd, mutate
from .records import pack_odd
from .target import Target, Wrong

KEYS = RootKeys(b"s" * 32)
_OURS = Identity("c", "bookie", "b1", "i1")
_THEIRS = Identity("c", "broker", "k1", "i2")
_NONCE = bytes(range(16))
_FRAME_MAX = 1 << 16
# An authenticated peer's nonsense is logged where it was met, and answered.
_FORGIVEN = ("method ",)


def frame(kind: int, code: int, request_id: int, payload: bytes) -> bytes:
    return encode_frame_header(kind, code, request_id, len(payload)) + payload


def _chunks(stream: bytes, step: int) -> list[bytes]:
    return [stream[start : start + step] for start in range(0, len(stream), step)]


# ---- Both ends ----


class _Service(OpenService):
    def __init__(self) -> None:
        self.handlers = {"echo": self.echo, "fail": self.fail}

    def data_request(self, connection: RpcConnection, op: int, request_id: int, payload: bytes) -> None:
        connection.respond(request_id, op & 0x7F, (payload,))

    async def echo(self, *, value: Any = None) -> Any:
        await asyncio.sleep(0)
        return value

    async def fail(self) -> None:
        raise BadVersion("stale", version=3)


def _connection(service: RpcService, *, initiator: bool, heard: Any = None) -> tuple[RpcConnection, MemoryTransport]:
    connection = RpcConnection(
        make_env(), _OURS, KEYS, service, initiator=initiator, frame_size_max=_FRAME_MAX, expected_node_id="k1"
    )
    return connection, MemoryTransport(connection, heard)


def shake(
    connection: RpcConnection, transport: MemoryTransport, *, initiator: bool, theirs: Identity = _THEIRS
) -> None:
    """The part of a peer `theirs` in a handshake that succeeds."""
    ours, nonce = connection.identity, connection._handshake.nonce
    if initiator:
        proof = rpc_handshake.prove(KEYS.calling(ours, theirs.role), "acceptor", ours, nonce, theirs, _NONCE)
        challenge = rpc_handshake.encode_challenge(theirs, _NONCE, proof)
        transport.feed(frame(KIND_NOTIFY, rpc_handshake.CHALLENGE, 0, challenge))
        transport.feed(frame(KIND_NOTIFY, rpc_handshake.WELCOME, 0, b""))
    else:
        transport.feed(frame(KIND_NOTIFY, rpc_handshake.HELLO, 0, rpc_handshake.encode_hello(theirs, _NONCE)))
        proof = rpc_handshake.prove(KEYS.accepting(ours, theirs), "initiator", theirs, _NONCE, ours, nonce)
        transport.feed(frame(KIND_NOTIFY, rpc_handshake.PROOF, 0, proof))
    if connection.state is not RpcConnectionState.READY:
        raise Wrong("a good handshake was refused")


async def _both_ends(data: bytes) -> None:
    mode, stream = data[0] if data else 0, data[1:]
    initiator, proven = bool(mode & 1), bool(mode & 2)
    connection, transport = _connection(_Service(), initiator=initiator)
    if proven:
        shake(connection, transport, initiator=initiator)
    asked = [asyncio.ensure_future(connection.call("echo", value=n, timeout_s=1)) for n in range(4)] if proven else []
    await turns(3)
    for chunk in _chunks(stream, 1 + mode % 61 if mode & 64 else len(stream) or 1):
        transport.feed(chunk)
        await turns(2)
    if connection._handshake.done and not proven:
        raise Wrong("a stranger was let in")
    await asyncio.sleep(2)
    transport.close()
    await connection.wait_closed()
    for call in asked:
        error = call.exception() if call.done() else TimeoutError("no answer at all")
        if error is not None and not isinstance(error, MagnetarError):
            raise Wrong(f"a caller got {error!r}") from error
        if isinstance(error, RpcTimeout | RpcDisconnected) and not connection.closed:
            raise Wrong("the connection outlives its end")


def make_stream(random: Random) -> bytes:
    """Frames of the handshake and of all that may follow, request ids as the calls under way have them."""
    identity = random.choice((_THEIRS, _OURS, Identity("other", "broker", "k1", "i")))
    payloads = [
        rpc_handshake.encode_hello(identity, _NONCE),
        rpc_handshake.encode_challenge(identity, _NONCE, random.randbytes(32)),
        random.randbytes(32),
        pack(["echo", {"value": [1, b"x", None, {"a": 1.5}]}]),
        pack(["fail", {}]),
        pack(["echo", {"wrong": 1}]),
        pack(["BadVersion", "stale", {"version": 3}]),
        pack(random.choice((7, None, "text", [1, 2], {1: 2}))),
        b"",
    ]
    stream = random.randbytes(1)
    for step in range(random.randint(1, 10)):
        payload = random.choice(payloads)
        if random.random() < 0.5:
            payload = mutate(payload, random, payloads)
        code = random.choice((0, 1, 2, 3, 4, 5, 255, 254)) if random.random() < 0.8 else min(step + 1, 5)
        kind = random.choice((KIND_REQUEST, KIND_RESPONSE, KIND_NOTIFY))
        stream += frame(kind, code, random.choice((0, 1, 2, 3, 0xFFFFFFFF)), payload)
    return mutate(stream, random) if random.random() < 0.2 else stream


# ---- A bookie ----

_ENTRIES = 5


class _Coordinator:
    """Answers what garbage collection and limbo ask of the metadata."""

    class _Metadata:
        async def allocate(self, key: str, count: int) -> int:
            return 100

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}
        self.on_session_lost: list[Any] = []
        self.metadata: Any = self._Metadata()

    async def start(self) -> None: ...
    async def register(self, host: str, port: int, data: dict[str, Any]) -> None: ...
    async def close(self) -> None: ...


class _Asker:
    """Asks a store directly."""

    def __init__(self, store: BookieStore) -> None:
        self._store = store
        self._answers: dict[int, tuple[int, bytes]] = {}

    def respond(self, request_id: int, status: int, parts: Any = ()) -> None:
        if request_id in self._answers:
            raise Wrong("answered twice")
        self._answers[request_id] = (status, b"".join(parts))

    def respond_all(self, request_ids: Any, status: int) -> None:
        for request_id in request_ids:
            self.respond(request_id, status)

    async def ask(self, op: int, payload: bytes) -> tuple[int, bytes]:
        request_id = len(self._answers)
        self._store.request(self, op, request_id, payload)
        await asyncio.sleep(0.1)
        if request_id not in self._answers:
            raise Wrong(f"operation {op} was not answered")
        return self._answers[request_id]


async def _bookie(data: bytes) -> None:
    mode, stream = data[0] if data else 0, data[1:]
    files = FaultyFiles()
    format_directory(files, DIRECTORY, INSTANCE)
    env, fatal = make_env(files), []
    settings = Settings(max_message_size_bytes=1 << 15, bookie_frame_size_max_bytes=_FRAME_MAX - 1024)
    store = BookieStore(env, DIRECTORY, INSTANCE, settings, on_fatal=fatal.append, segment_bytes=16 << 10)
    await store.open()
    service = BookieService(
        env, DIRECTORY, "b1", "c", KEYS, settings, "127.0.0.1", 0, _nowhere, coordinator=_Coordinator()
    )
    service._store = store
    asker = _Asker(store)
    for entry_id in range(_ENTRIES):
        await asker.ask(BookieOp.ADD, add_payload(1, entry_id))
    if mode & 1:
        await store.enter_limbo("the input wants it")
    connection, transport = _connection(service, initiator=False)
    shake(connection, transport, initiator=False)
    for chunk in _chunks(stream, 1 + mode % 61 if mode & 64 else len(stream) or 1):
        transport.feed(chunk)
        await turns(4)
    await asyncio.sleep(3)
    transport.close()
    await connection.wait_closed()
    if fatal or store.failed:
        raise Wrong(f"the bookie stopped: {fatal}")
    status, answer = await asker.ask(BookieOp.READ, encode_read(1, 0, 0, _ENTRIES - 1, 1 << 20))
    found = [decode_entry(entry) for entry in decode_read_answer(answer)[1]] if status == BookieStatus.OK else []
    if [entry.body for entry in found] != [body_of(1, entry_id) for entry_id in range(_ENTRIES)]:
        raise Wrong(f"status {status}: {len(found)} of {_ENTRIES} entries are what they were")
    if (await asker.ask(BookieOp.READ_LAC, encode_ledger(1, 0)))[0] not in (BookieStatus.OK, BookieStatus.UNKNOWN):
        raise Wrong("the ledger's state is gone")
    limbo = store.limbo
    await store.close()
    service._store = None
    await _start_again(files, env, settings, limbo)


async def _start_again(files: FaultyFiles, env: Environment, settings: Settings, limbo: str) -> None:
    """Nothing that was asked of the bookie keeps it from starting with what it had."""
    again = BookieStore(env, DIRECTORY, INSTANCE, settings, on_fatal=_fail, segment_bytes=16 << 10)
    await again.open()
    if again.limbo != limbo:
        raise Wrong(f"limbo is {again.limbo!r} after a start, and was {limbo!r}")
    status, answer = await _Asker(again).ask(BookieOp.READ, encode_read(1, 0, 0, _ENTRIES - 1, 1 << 20))
    if status != BookieStatus.OK or len(decode_read_answer(answer)[1]) != _ENTRIES:
        raise Wrong(f"status {status} after a start")
    await again.close()


def _fail(error: BaseException) -> None:
    raise Wrong("the bookie stopped") from error


async def _nowhere() -> tuple[str, int]:
    raise AssertionError("not asked for")


def make_requests(random: Random) -> bytes:
    """Requests to a bookie: most of them valid, extremes in the numbers."""
    numbers = (0, 1, 2, 4, 5, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

    def number() -> int:
        return random.choice(numbers) if random.random() < 0.5 else random.randrange(8)

    def nonce() -> int:
        return random.choice((0, 0, 0, 1))

    def ranged() -> bytes:
        return encode_read(
            number(), nonce(), number(), number(), random.choice((0, 1, 1000, (1 << 32) - 1)), random.random() < 0.1
        )

    stream = random.randbytes(1)
    for _ in range(random.randint(1, 25)):
        op = random.choice((1, 1, 1, 2, 2, 3, 4, 0, 9))
        if op == 1:
            size = random.choice((0, 1, 100, 4000))
            lac = random.choice((-1, 0, 3, (1 << 63) - 1))
            payload = add_payload(number(), number(), random.randbytes(size), lac=lac, recovery=random.random() < 0.3)
        elif op == 2:
            payload = ranged()
        elif op == 0:
            calls: dict[str, dict[str, Any]] = {
                "status": {},
                "ledgers": {"after": number() - 1, "limit": number()},
                "lacking": {"parts": [[number(), nonce(), number(), number(), number(), number(), number()]]},
                "lacking ": {"parts": [[1, 0, 0, 1 << 40, 0, 3, 3]]},
                "copy_entries": {"part": [number(), nonce(), number(), number(), 0, 3, 3], "sources": []},
                "clear_limbo": {"fence_floor": number(), "reason": "the input wants it"},
                "clear_limbo ": {"fence_floor": None, "reason": None},
                "__init__": {},
            }
            method = random.choice(list(calls))
            arguments = calls[method]
            if random.random() < 0.4:
                make_odd(arguments, random)
            payload = pack_odd([method.strip(), arguments])
        else:
            payload = encode_ledger(number(), nonce())
        if random.random() < 0.2:
            payload = mutate(payload, random)
        stream += frame(KIND_REQUEST, op, random.randrange(1 << 32), payload)
    return mutate(stream, random) if random.random() < 0.1 else stream


TARGETS = [
    Target("rpc", make_stream, lambda data: run(_both_ends(data), forgiven=_FORGIVEN)),
    Target("bookie", make_requests, lambda data: run(_bookie(data), forgiven=_FORGIVEN), share=3),
]
