"""Every error pickles, travels over the internal RPC, and agrees with the official client's names."""

import copy
import pickle

import msgpack
import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import errors
from magnetar.protocol.errors import MagnetarError, error_from_wire, error_to_wire
from magnetar.protocol.pulsar_pb2 import ServerError

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, MagnetarError)]
DETAILS = {"ledger_id": 7, "bookies": ["bookie-1"], "digest": b"\x00", "none": None}


@pytest.mark.parametrize("error_class", CLASSES, ids=lambda value: value.__name__)
def test_pickles_and_copies(error_class: type[MagnetarError]) -> None:
    error = error_class("it broke", **DETAILS)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is error_class
        assert (str(other), other.message, other.details) == ("it broke", "it broke", DETAILS)


@pytest.mark.parametrize("error_class", CLASSES, ids=lambda value: value.__name__)
def test_travels(error_class: type[MagnetarError]) -> None:
    triple = msgpack.unpackb(msgpack.packb(error_to_wire(error_class("it broke", **DETAILS))))
    other = error_from_wire(*triple)
    assert type(other) is error_class
    assert (other.message, other.details) == ("it broke", DETAILS)


FLAGGED = [error_class for error_class in CLASSES if error_class.flag]


@pytest.mark.parametrize("error_class", FLAGGED, ids=lambda value: value.__name__)
def test_an_older_release_takes_a_flagged_error_for_the_class_above_it(error_class: type[MagnetarError]) -> None:
    name, _, details = error_to_wire(error_class("it broke", ledger_id=7))
    assert (name, details) == (error_class.__mro__[1].__name__, {"ledger_id": 7, error_class.flag: True})


def test_a_flag_counts_only_below_its_own_class() -> None:
    other = error_from_wire("TopicNotFound", "gone", {errors.ConflictError.flag: True})
    assert (type(other), other.details) == (errors.TopicNotFound, {errors.ConflictError.flag: True})
    assert type(error_from_wire("NotAllowedError", "no", {errors.ConflictError.flag: 1})) is errors.NotAllowedError


def test_no_two_errors_have_one_flag() -> None:
    assert len({error_class.flag for error_class in FLAGGED}) == len(FLAGGED) == 5


def test_without_message_shows_its_name() -> None:
    assert str(errors.TopicNotFound()) == "TopicNotFound"
    assert errors.TopicNotFound().message == ""


def test_details_may_be_called_anything() -> None:
    error = error_from_wire("TopicNotFound", "gone", {"message": 1, "self": 2, 3: 4})
    assert error.details == {"message": 1, "self": 2, "3": 4}


def test_foreign_exceptions_travel_as_rpc_error() -> None:
    name, message, details = error_to_wire(ValueError("no\ud800"))
    assert (name, message, details) == ("RpcError", "ValueError: no?", {})

    class Local(MagnetarError):
        pass

    assert error_to_wire(Local("x"))[:2] == ("RpcError", "Local: x")


def test_details_become_plain() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    details = {
        "set": {1},
        "big": 1 << 80,
        "cycle": cycle,
        "bad": "\udc00",
        "keys": {1: 2},
        "status": ServerError.Value("TopicNotFound"),
    }
    packed = msgpack.packb(error_to_wire(errors.LedgerError("x", **details)))
    back = msgpack.unpackb(packed)[2]
    assert back["set"] == "{1}"
    assert back["big"] == str(1 << 80)
    assert back["bad"] == "?"
    assert back["keys"] == {"1": 2}
    assert back["status"] == 11


@given(
    st.one_of(st.none(), st.text(), st.integers()),
    st.one_of(st.text(), st.binary()),
    st.one_of(st.none(), st.dictionaries(st.integers(), st.text())),
)
def test_nonsense_becomes_rpc_error(name: object, message: object, details: object) -> None:
    assert type(error_from_wire(name, message, details)) in (errors.RpcError, *CLASSES)


def test_every_server_error_has_its_class() -> None:
    numbers = sorted(ServerError.values())
    assert numbers == list(range(len(errors.SERVER_ERRORS)))
    for number in numbers:
        error = errors.exception_for_server_error(number, "text")
        assert errors.server_error_code(error) == number
        assert error.message == "text"


def test_unknown_server_error_keeps_its_number() -> None:
    for number in (-1, 26, 1 << 40):
        error = errors.exception_for_server_error(number, "text")
        assert type(error) is errors.UnknownError
        assert error.details == {"server_error": number}


def test_what_clients_retry() -> None:
    # Pulsar's clients retry these answers to a lookup until their operation time-out; others are final.
    retried = {errors.exception_for_server_error(number, "").__class__ for number in (0, 1, 6, 14)}
    assert all(errors.is_retriable(error_class()) for error_class in retried)
    for final in (errors.TopicNotFound, errors.AuthorizationError, errors.ProducerFenced, errors.InvalidTopicName):
        assert not errors.is_retriable(final())
    assert errors.is_retriable(ConnectionResetError())
    assert errors.is_retriable(TimeoutError())
    assert not errors.is_retriable(ValueError())


def test_internal_errors_look_right_to_clients() -> None:
    assert errors.server_error_code(errors.NotEnoughBookies()) == 6
    assert errors.server_error_code(errors.LedgerFenced()) == 6
    assert errors.server_error_code(errors.BadVersion()) == 1
    assert errors.server_error_code(errors.EntryCorrupt()) == 2
    assert errors.server_error_code(RuntimeError()) == 0


def test_names_equal_those_of_the_official_client() -> None:
    official = {
        name
        for name, value in vars(pulsar).items()
        if isinstance(value, type) and issubclass(value, pulsar.PulsarException) and value is not pulsar.PulsarException
    }
    assert official <= {error_class.__name__ for error_class in CLASSES}
