"""Moving from the official Python client is an import change: what exists in both has the same names, parameters in the
same places, and the same defaults; what is not here yet is refused by name."""

import dataclasses
import importlib
import inspect
import pickle
import types
from datetime import timedelta
from typing import Any

import pytest

import magnetar
from magnetar.client.core.absent import Absent
from magnetar.client.core.configuration import (
    ClientConfiguration,
    ConsumerConfiguration,
    ProducerConfiguration,
    ReaderConfiguration,
)
from magnetar.client.core.options import Options, checked_choice, refuse
from magnetar.protocol.errors import InvalidConfiguration, MagnetarError, OperationNotSupported

pulsar = pytest.importorskip("pulsar")
official_asyncio = pytest.importorskip("pulsar.asyncio")

ABSENT = {
    "Client": {"get_service_info"},
    "ConsumerBatchReceivePolicy": {"policy"},
}
OTHERWISE = {  # a default that differs: what it stands for is the same
    "service_url", "schema", "properties", "disable_replication",
    "crypto_failure_action",
    "tls_validate_hostname",  # here a host name is checked unless the program says otherwise
}  # fmt: skip
NAMES = ["Client", "Producer", "Consumer", "Reader", "Message", "MessageId", "ConsumerBatchReceivePolicy"]


def parameters(function: Any) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "kwargs")]


def check(theirs: Any, ours: Any, what: str) -> None:
    expected, found = parameters(theirs), parameters(ours)
    assert [one.name for one in expected] == [one.name for one in found[: len(expected)]], what
    for one, other in zip(expected, found, strict=False):
        assert other.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, (what, other.name)
        if one.default is not inspect.Parameter.empty and one.name not in OTHERWISE:
            enumeration = type(one.default).__module__ == "_pulsar"
            assert other.default == (int(one.default) if enumeration else one.default), (what, one.name)


@pytest.mark.parametrize("name", NAMES)
def test_methods_and_their_parameters(name: str) -> None:
    theirs, ours = getattr(pulsar, name), getattr(magnetar, name)
    for method, function in vars(theirs).items():
        if method.startswith("_") or not callable(getattr(theirs, method)) or method in ABSENT.get(name, ()):
            continue
        assert callable(getattr(ours, method, None)), f"{name}.{method}"
        if not isinstance(function, pulsar.MessageId):
            check(getattr(theirs, method), getattr(ours, method), f"{name}.{method}")
    if name in ("Client", "ConsumerBatchReceivePolicy"):
        check(theirs.__init__, ours.__init__, name)


@pytest.mark.parametrize(
    "method", ["create_producer", "subscribe", "create_reader", "get_topic_partitions", "shutdown"]
)
def test_methods_of_the_asyncio_client(method: str) -> None:
    check(getattr(official_asyncio.Client, method), getattr(magnetar.AsyncClient, method), method)


CALLS = [
    (face, call, kind)
    for face in (magnetar.Client, magnetar.AsyncClient)
    for call, kind in {
        "__init__": ClientConfiguration,
        "create_producer": ProducerConfiguration,
        "subscribe": ConsumerConfiguration,
        "create_reader": ReaderConfiguration,
    }.items()
]


@pytest.mark.promise("13.1")
@pytest.mark.parametrize(("face", "call", "kind"), CALLS)
def test_a_call_takes_the_options_that_are_declared(face: Any, call: str, kind: type[Options]) -> None:
    declared = {field.name: field for field in dataclasses.fields(kind)}
    taken = {one.name: one for one in parameters(getattr(face, call)) if one.name != "options"}
    assert set(taken) == {name for name, field in declared.items() if not field.kw_only} | set(kind.BESIDES)
    for name, one in taken.items():
        if name in declared and name != "properties" and (face, name) != (magnetar.AsyncClient, "batching_enabled"):
            expected = declared[name].default
            assert one.default == (inspect.Parameter.empty if expected is dataclasses.MISSING else expected), name
        elif name in kind.BESIDES:
            assert one.default == kind.BESIDES[name].default, name


OF_THE_OTHER_ROOMS = {"close_one", "close_when_forgotten", "open_consumer", "open_producer", "open_reader"}
"""Methods of a blocking client that its own producers, consumers and readers call."""
OF_PICKLED_COPIES = {"inherited", "is_unopened"}


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "Reader", "TableView"])
def test_both_faces_have_the_same_methods(name: str) -> None:
    blocking, aio = (
        {method for method in dir(getattr(magnetar, face)) if not method.startswith("_")}
        for face in (name, f"Async{name}")
    )
    assert blocking - aio <= OF_THE_OTHER_ROOMS | OF_PICKLED_COPIES
    assert aio - blocking <= {"is_open", "create"}


@pytest.mark.parametrize(
    "kind", [ClientConfiguration, ProducerConfiguration, ConsumerConfiguration, ReaderConfiguration]
)
def test_every_option_has_a_doc_line(kind: type[Options]) -> None:
    for field in dataclasses.fields(kind):
        assert field.metadata["doc"].endswith("."), field.name


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    for face in (magnetar.Client, magnetar.AsyncClient):
        with pytest.raises(TypeError, match="conection_timeout_ms"):
            face("pulsar://127.0.0.1:1", conection_timeout_ms=1)


NOT_ITS_OWN = {"Callable", "List", "Optional", "Tuple", "Union", "asyncio", "logging", "re", "timedelta"}
"""The official module imports these from the standard library, or the application has imported them into it."""


def test_every_public_name_of_the_official_package_is_here() -> None:
    theirs = {name for name in dir(pulsar) if not name.startswith("_")} - NOT_ITS_OWN
    assert len(theirs) > 90 and theirs - set(magnetar.__all__) == set()
    for name in theirs:
        ours = getattr(magnetar, name)
        if isinstance(ours, Absent):
            check_absent(ours, name)


@pytest.mark.parametrize("name", ["schema", "functions", "exceptions", "tableview"])
def test_every_public_name_of_its_modules_is_here(name: str) -> None:
    theirs = importlib.import_module(f"pulsar.{name}")
    ours = importlib.import_module(f"magnetar.{name}")
    assert getattr(magnetar, name) is ours
    modules = [theirs, *(importlib.import_module(f"pulsar.functions.{one}") for one in FUNCTION_MODULES)]
    own = {
        key
        for module in (modules if name == "functions" else [theirs])
        for key, value in vars(module).items()
        if str(getattr(value, "__module__", "")).split(".")[0] in ("pulsar", "_pulsar") and not key.startswith("_")
    }
    public = set(getattr(ours, "__all__", vars(ours)))
    assert own and own - {"Schema"} <= public
    for key in own & public:
        value = getattr(ours, key)
        if isinstance(value, Absent):
            check_absent(value, key)


FUNCTION_MODULES = ("context", "function", "serde")


def check_absent(ours: Any, name: str) -> None:
    """It may be imported, shown and named in annotations. Whoever uses it is told what is missing, and why."""
    assert repr(ours) and (ours | None) and not isinstance(3, ours) and not hasattr(ours, "__wrapped__")
    for use in (lambda: ours("a", b=1), lambda: ours.Info, lambda: types.new_class("Own", (ours,))):
        with pytest.raises(OperationNotSupported, match=rf"^{name} is not supported: .+") as refused:
            use()
        assert len(str(refused.value)) > len(name) + 40, "it says why, and what to do"


ENUMERATIONS = [name for name in dir(pulsar) if hasattr(getattr(pulsar, name), "__members__") and name != "LoggerLevel"]


@pytest.mark.parametrize("name", ENUMERATIONS)
def test_members_of_official_enumerations_are_taken_for_ours(name: str) -> None:
    kind = getattr(magnetar, name)
    for member, value in getattr(pulsar, name).__members__.items():
        assert checked_choice("it", value, kind) is kind[member]
        other = pulsar.BatchingType.KeyBased if name != "BatchingType" else pulsar.ConsumerType.Shared
        for wrong in (int(value), member, other):
            with pytest.raises(InvalidConfiguration, match=f"it must be a magnetar.{name}"):
                checked_choice("it", wrong, kind)


def test_options_take_official_enumerations_and_ids() -> None:
    consumer = ConsumerConfiguration.of(
        {"topic": "t", "subscription_name": "s", "consumer_type": pulsar.ConsumerType.KeyShared}
        | {"initial_position": pulsar.InitialPosition.Earliest}
    )
    assert consumer.consumer_type is magnetar.ConsumerType.KeyShared
    assert consumer.initial_position is magnetar.InitialPosition.Earliest
    producer = ProducerConfiguration.of({"topic": "t", "compression_type": pulsar.CompressionType.ZLib})
    assert producer.compression_type is magnetar.CompressionType.ZLIB
    for theirs, ours in (
        (pulsar.MessageId.earliest, magnetar.MessageId.earliest),
        (pulsar.MessageId.latest, magnetar.MessageId.latest),
        (pulsar.MessageId(3, 1, 2, 4), magnetar.MessageId(3, 1, 2, 4)),
    ):
        assert ReaderConfiguration.of({"topic": "t", "start_message_id": theirs}).start_message_id == ours
    policy = magnetar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, [(0, 65535)])
    assert policy.key_shared_mode is magnetar.KeySharedMode.Sticky


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        ("Timeout", TimeoutError),
        ("ConnectError", ConnectionError),
        ("ConnectionClosed", ConnectionError),
        ("NotConnected", ConnectionError),
        ("InvalidConfiguration", ValueError),
        ("InvalidUrl", ValueError),
        ("InvalidTopicName", ValueError),
        ("SettingError", ValueError),
    ],
)
def test_errors_are_what_python_calls_them_too(error: str, builtin: type[Exception]) -> None:
    kind = getattr(magnetar, error)
    with pytest.raises(builtin, match="why") as raised:
        raise kind("why", detail=[1])
    copy = pickle.loads(pickle.dumps(raised.value))
    assert type(copy) is kind and str(copy) == "why" and copy.details == {"detail": [1]} and copy.message == "why"
    assert str(kind()) == error


def test_the_module_of_exceptions_holds_the_official_names() -> None:
    import pulsar.exceptions as theirs

    import magnetar.exceptions as ours

    names, own = ({name for name in dir(module) if not name.startswith("_")} for module in (theirs, ours))
    assert "CryptoError" in names and own == names
    for name in names:
        assert issubclass(getattr(ours, name), MagnetarError), name
        assert getattr(ours, name) is getattr(magnetar, name), name
    assert magnetar.exceptions is ours


def test_an_id_of_the_official_client_is_wrapped() -> None:
    native = pulsar.MessageId(3, 1, 2, 4)._msg_id
    assert magnetar.MessageId.wrap(native) == magnetar.MessageId(3, 1, 2, 4)
    assert magnetar.MessageId.wrap(pulsar.MessageId(3, 1, 2, 4)) == magnetar.MessageId(3, 1, 2, 4)
    own = magnetar.MessageId(3, 1, 2, 4, 9)
    assert magnetar.MessageId.wrap(own) is own


@pytest.mark.parametrize(
    "name",
    [
        "CompressionType",
        "InitialPosition",
        "ProducerAccessMode",
        "PartitionsRoutingMode",
        "BatchingType",
        "RegexSubscriptionMode",
        "Result",
    ],
)
def test_enumerations(name: str) -> None:
    for member, value in getattr(pulsar, name).__members__.items():
        assert getattr(magnetar, name)[member].value == int(value)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("create_producer", {"schema": object()}),
        ("create_reader", {"start_message_id": magnetar.MessageId.earliest, "schema": object()}),
    ],
)
async def test_what_is_no_schema_is_refused_by_name(method: str, options: dict[str, Any]) -> None:
    client = magnetar.AsyncClient("pulsar://127.0.0.1:1")
    with pytest.raises(InvalidConfiguration, match=list(options)[-1]):
        await getattr(client, method)(topic="t", **options)
    await client.close()
    blocking = magnetar.Client("pulsar://127.0.0.1:1")
    with pytest.raises(InvalidConfiguration, match=list(options)[-1]):
        getattr(blocking, method)(topic="t", **options)
    blocking.close()


@pytest.mark.parametrize("options", [{"logger": object()}])
def test_clients_that_are_not_to_be_had(options: dict[str, Any]) -> None:
    for kind in (magnetar.Client, magnetar.AsyncClient):
        with pytest.raises(OperationNotSupported, match=next(iter(options))):
            kind("pulsar://127.0.0.1:1", **options)


def test_what_switches_a_feature_off_passes() -> None:
    refuse(
        "call", a=None, b=False, c=0, d=pulsar.ProducerAccessMode.Shared, e=pulsar.schema.BytesSchema(), f=[],
        g=timedelta(0), h=pulsar.RegexSubscriptionMode.PersistentOnly, i=pulsar.ConsumerCryptoFailureAction.FAIL,
    )  # fmt: skip
    for value in (True, 1, "x", object(), timedelta(1), pulsar.ProducerAccessMode.WaitForExclusive):
        with pytest.raises(OperationNotSupported):
            refuse("call", it=value)
