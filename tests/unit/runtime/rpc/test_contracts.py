"""Contracts of the internal RPC: what travels, what is refused, and that a service has what its contract declares."""

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

import pytest

from magnetar.protocol.errors import AuthorizationError, ProtocolError
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.connection import RpcConnection, RpcService, rpc_connect
from magnetar.runtime.rpc.contract import CALLER, Contract, handlers_of, method
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


class ShelfContract(Contract):
    @method(BROKERS, timeout_s=7.0)
    async def put(self, *, shelf: Shelf, items: list[int], note: str | None = None) -> Stock: ...

    @method(frozenset({"admin"}))
    async def close(self) -> None: ...


class NoteContract(Contract):
    @method(BROKERS)
    def note(self, *, text: str) -> None:
        """Keep a text."""
        ...

    @method(BROKERS)
    async def who(self, *, greeting: str = "hello", caller: RpcConnection = CALLER) -> str: ...


class StoreContract(ShelfContract, NoteContract): ...


class Notes(NoteContract):
    def __init__(self) -> None:
        self.noted: asyncio.Queue[str] = asyncio.Queue()

    def note(self, *, text: str) -> None:
        self.noted.put_nowait(text)

    async def who(self, *, greeting: str = "hello", caller: RpcConnection = CALLER) -> str:
        return f"{greeting} {caller.peer.node_id}"


class Store(RpcService, ShelfContract):
    contract = StoreContract

    def __init__(self) -> None:
        notes = Notes()
        self.noted = notes.noted
        self.handlers = handlers_of(StoreContract, self, notes)

    async def put(self, *, shelf: Shelf, items: list[int], note: str | None = None) -> Stock:
        return Stock([shelf, Shelf("other")], note, {"items": len(items)})

    async def close(self) -> None:
        raise AssertionError("no broker may close the store")


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


async def test_a_method_is_told_who_calls_and_no_caller_can_say_otherwise(store) -> None:
    _, connection = store
    assert await StoreContract(connection.call).who() == "hello broker-1"
    assert await StoreContract(connection.call).who(greeting="here is") == "here is broker-1"
    with pytest.raises(ProtocolError, match="who has no argument 'caller'"):
        await connection.call("who", caller="broker-2")


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
    monkeypatch.setitem(service.handlers, "put", lambda **given: pytest.fail("the handler was called"))
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
    with pytest.raises(TypeError, match="text, which must be keyword-only"):

        @method(BROKERS)
        async def say(self: Contract, text: str) -> None: ...


def test_a_class_with_some_handlers_only_or_with_other_arguments_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match="Unfinished has no handler for who"):

        class Unfinished(NoteContract):
            def note(self, *, text: str) -> None: ...

    with pytest.raises(TypeError, match=r"Sloppy\.put does not take the arguments"):

        class Sloppy(ShelfContract):
            async def put(self, *, shelf: Shelf, items: list[int], note: str | None = "none") -> Stock: ...
            async def close(self) -> None: ...

    with pytest.raises(TypeError, match=r"Waiting\.note must not be async"):

        class Waiting(Notes):
            async def note(self, *, text: str) -> None: ...  # type: ignore[override]

    with pytest.raises(TypeError, match="two parts that declare put"):

        class Doubled(ShelfContract, Doubling): ...  # type: ignore[misc]


class Doubling(Contract):
    @method(BROKERS)
    async def put(self) -> None: ...


def test_each_method_has_a_handler_and_no_two_objects_have_one_method() -> None:
    assert list(Store().handlers) == ["put", "close", "note", "who"]
    with pytest.raises(TypeError, match="no object has close, put of StoreContract"):
        handlers_of(StoreContract, Notes())
    with pytest.raises(TypeError, match="Notes and another object have note"):
        handlers_of(StoreContract, Notes(), Notes())
    with pytest.raises(TypeError, match="ShelfContract does not declare note, which Notes has"):
        handlers_of(ShelfContract, Notes())
    with pytest.raises(TypeError, match="Nothing has no handler for put"):
        handlers_of(ShelfContract, Nothing(Notes().note))


class Nothing(ShelfContract):
    """It overrides nothing, so its methods are those of a caller."""


def test_the_meaning_of_a_method_stands_in_its_contract() -> None:
    assert inspect.getdoc(Notes.note) == "Keep a text."
