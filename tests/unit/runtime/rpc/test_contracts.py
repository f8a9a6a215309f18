"""Contracts of the internal RPC: what travels, what is refused, and that a service has what its contract declares."""

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

import pytest

from magnetar.protocol.errors import AuthorizationError, ProtocolError
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import RpcConnection, RpcService, rpc_connect
from magnetar.runtime.rpc.contract import Contract, disagreements, method
from magnetar.runtime.rpc.keys import Identity, RootKeys
from magnetar.runtime.rpc.messages import pack, unpack
from magnetar.runtime.rpc.server import RpcServer
from magnetar.runtime.rpc.shapes import Misfit, shape_of

BROKERS = frozenset({"broker"})
KEYS = RootKeys(b"s" * 32)


class Shelf(NamedTuple):
    name: str
    places: int = 3


@dataclass(frozen=True)
class Stock:
    shelves: list[Shelf]
    note: str | None
    counts: dict[str, int]
    ratio: float = 1.0


class StoreContract(Contract):
    @method(BROKERS, timeout_s=7.0)
    async def put(self, *, shelf: Shelf, items: list[int], note: str | None = None) -> Stock: ...

    @method(frozenset({"admin"}))
    async def close(self) -> None: ...

    @method(BROKERS)
    def note(self, *, text: str) -> None: ...


class Store(RpcService):
    contract = StoreContract

    def __init__(self) -> None:
        self.noted: asyncio.Queue[str] = asyncio.Queue()

    async def rpc_put(
        self, connection: RpcConnection, shelf: Shelf, items: list[int], note: str | None = None
    ) -> Stock:
        return Stock([shelf, Shelf("other")], note, {"items": len(items)})

    async def rpc_close(self, connection: RpcConnection) -> None:
        raise AssertionError("no broker may close the store")

    async def rpc_note(self, connection: RpcConnection, text: str) -> None:
        self.noted.put_nowait(text)


@pytest.fixture
async def store():
    env = Environment.real()
    service = Store()
    server = RpcServer(env, Identity("c", "coordinator", "store", "1"), KEYS, service, frame_size_max=1 << 16)
    host, port = await server.start("127.0.0.1")
    caller = Identity("c", "broker", "broker-1", "1")
    connection = await rpc_connect(env, host, port, caller, KEYS, frame_size_max=1 << 16)
    yield service, connection
    connection.close()
    await connection.wait_closed()
    await server.close()


async def test_a_call_carries_types_both_ways(store) -> None:
    _, connection = store
    found = await StoreContract(connection.call).put(shelf=Shelf("top", 2), items=[1, 2, 3])
    assert found == Stock([Shelf("top", 2), Shelf("other", 3)], None, {"items": 3})
    assert isinstance(found.shelves[0], Shelf)


async def test_a_notification_returns_at_once_and_arrives(store) -> None:
    service, connection = store
    assert StoreContract(connection.notify).note(text="hello") is None
    assert await asyncio.wait_for(service.noted.get(), 5) == "hello"


@pytest.mark.parametrize(
    "arguments",
    [
        {"shelf": ["top", 2]},
        {"shelf": ["top", "2"], "items": []},
        {"shelf": [], "items": []},
        {"shelf": ["top", 1, 1], "items": []},
        {"shelf": {"name": "top"}, "items": []},
        {"shelf": ["top"], "items": [True]},
        {"shelf": ["top"], "items": "12"},
        {"shelf": ["top"], "items": [], "note": 5},
        {"shelf": ["top"], "items": [], "colour": "red"},
        {"shelf": ["top"], "items": [], "connection": 1},
        {"shelf": ["top"], "items": [], "self": 1},
    ],
)
async def test_wrong_arguments_get_a_typed_error_and_never_reach_the_handler(store, arguments, monkeypatch) -> None:
    service, connection = store
    monkeypatch.setattr(service, "rpc_put", lambda *given, **more: pytest.fail("the handler was called"))
    with pytest.raises(ProtocolError, match=r"malformed call: .*put"):
        await connection.call("put", **arguments)


async def test_a_wrong_notification_is_refused_and_the_connection_goes_on(store) -> None:
    service, connection = store
    connection.notify("note", text=5)
    connection.notify("note", text="good")
    assert await asyncio.wait_for(service.noted.get(), 5) == "good"


async def test_a_role_that_is_not_named_is_refused(store) -> None:
    _, connection = store
    with pytest.raises(AuthorizationError, match="may not call close"):
        await StoreContract(connection.call).close()


@pytest.mark.parametrize("answer", [5, {}, {"shelves": [], "note": None}, {"shelves": [1], "note": "", "counts": {}}])
async def test_an_answer_of_another_type_is_a_typed_error(answer: object) -> None:
    async def call(method: str, **arguments: object) -> object:
        return answer

    with pytest.raises(ProtocolError, match="malformed answer: the answer to put"):
        await StoreContract(call).put(shelf=Shelf("top"), items=[])


async def test_only_what_the_caller_gave_travels_with_the_timeout_that_holds() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    async def call(method: str, **arguments: object) -> None:
        calls.append((method, arguments))

    with pytest.raises(ProtocolError):
        await StoreContract(call).put(shelf=Shelf("top"), items=[])
    await StoreContract(call).close()
    await StoreContract(call, timeout_s=2.0).close()
    assert calls == [
        ("put", {"shelf": Shelf("top"), "items": [], "timeout_s": 7.0}),
        ("close", {}),
        ("close", {"timeout_s": 2.0}),
    ]


def test_named_tuples_travel_as_arrays_and_dataclasses_as_maps() -> None:
    packed = unpack(pack(Stock([Shelf("top")], "n", {"a": 1})))
    assert packed == {"shelves": [["top", 3]], "note": "n", "counts": {"a": 1}, "ratio": 1.0}


def test_keys_that_a_newer_peer_adds_are_left_out_and_defaults_may_be_missing() -> None:
    found = shape_of(Stock)({"shelves": [["top"]], "note": None, "counts": {}, "later": 1})
    assert found == Stock([Shelf("top")], None, {})


class Label(TypedDict):
    name: str
    shelf: NotRequired[Shelf]


def test_a_typed_dict_keeps_keys_that_it_does_not_declare_and_needs_those_it_does() -> None:
    shape = shape_of(Label)
    assert shape({"name": "a", "later": [1]}) == {"name": "a", "later": [1]}
    assert shape({"name": "a", "shelf": ["top"]}) == {"name": "a", "shelf": Shelf("top")}
    for bad in ({}, {"name": 1}, {"name": "a", "shelf": "top"}, ["name"]):
        with pytest.raises(Misfit):
            shape(bad)


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (int, 5, True),
        (bool, True, 1),
        (float, 3, "3"),
        (bytes, b"x", "x"),
        (str, "x", b"x"),
        (None, None, 0),
        (list[str], ["a"], [1]),
        (dict[str, int], {"a": 1}, {"a": "b"}),
        (tuple[str, int], ["a", 1], ["a"]),
        (str | int | list[int], [1], [[1]]),
        (list, [1, "a"], {}),
        (dict, {1: 2}, []),
    ],
)
def test_a_value_passes_as_its_type_only(declared: object, good: object, bad: object) -> None:
    shape = shape_of(declared)
    assert shape(good) == (tuple(good) if isinstance(good, list) and declared == tuple[str, int] else good)
    with pytest.raises(Misfit):
        shape(bad)


def test_a_type_that_cannot_travel_is_refused_at_its_declaration() -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        shape_of(set[int])
    with pytest.raises(TypeError, match="cannot travel"):
        pack({"when": object()})
    with pytest.raises(OverflowError, match="64 bits"):
        pack({"when": 1 << 64})


def test_an_argument_that_is_not_keyword_only_is_refused_at_its_declaration() -> None:
    with pytest.raises(TypeError, match="declares text"):

        @method(BROKERS)
        async def say(self: Contract, text: str) -> None: ...


def test_a_service_that_is_not_what_its_contract_says_is_found_out() -> None:
    class Sloppy(RpcService):
        rpc_close = Store.rpc_close

        async def rpc_put(self, connection: RpcConnection, shelf: Shelf, items: list[str]) -> Stock: ...

        def rpc_note(self, connection: RpcConnection, text: str) -> None: ...

        async def rpc_forgotten(self, connection: RpcConnection) -> None: ...

    class Unfinished(RpcService):
        rpc_put, rpc_note = Store.rpc_put, Store.rpc_note

    assert disagreements(StoreContract, Store) == []
    found = disagreements(StoreContract, Sloppy)
    assert [line.split(" ")[0] for line in found] == ["rpc_forgotten", "rpc_note", "rpc_put", "rpc_put"]
    assert disagreements(StoreContract, Unfinished) == ["close has no handler"]
