"""Values of the client: ids, URLs, configurations, results, start filters; what they refuse and that they pickle."""

import pickle

import pytest

from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.consuming.start_filter import StartFilter
from magnetar.client.core import configuration
from magnetar.client.core.configuration import (
    ClientConfiguration,
    ConsumerBatchReceivePolicy,
    ConsumerConfiguration,
    PartitionsRoutingMode,
    ProducerConfiguration,
    ReaderConfiguration,
)
from magnetar.client.core.message_id import MessageId, batch_ids
from magnetar.client.core.results import Result
from magnetar.client.core.service_url import format_address, parse_service_url
from magnetar.protocol.errors import (
    ConnectError,
    InvalidConfiguration,
    InvalidUrl,
    LedgerFenced,
    ProtocolError,
    Timeout,
)
from magnetar.protocol.pulsar_pb2 import MessageMetadata

# ---- Message ids ----


def test_an_id_serializes_as_the_official_client_does() -> None:
    assert MessageId(1, 2, 3, 4).serialize() == b"\x08\x02\x10\x03\x18\x01 \x04"
    assert MessageId.deserialize(b"\x08\x02\x10\x03\x18\x01 \x04") == MessageId(1, 2, 3, 4)


@pytest.mark.parametrize(
    "message_id", [MessageId.earliest, MessageId.latest, MessageId(-1, 5, 6), MessageId(3, 5, 6, 7, 8)]
)
def test_ids_survive_bytes_and_pickle(message_id: MessageId) -> None:
    for copy in (MessageId.deserialize(message_id.serialize()), pickle.loads(pickle.dumps(message_id))):
        assert copy == message_id
        assert copy.batch_size() == message_id.batch_size()
        assert hash(copy) == hash(message_id)


def test_ids_are_ordered_by_place_and_equal_whatever_is_known_of_their_batch() -> None:
    ordered = [
        MessageId.earliest, MessageId(-1, 1, 9), MessageId(-1, 2, 0), MessageId(-1, 2, 0, 0), MessageId(-1, 2, 0, 1),
        MessageId(-1, 2, 1), MessageId.latest,
    ]  # fmt: skip
    assert sorted(reversed(ordered)) == ordered
    assert MessageId(-1, 1, 2, 3, 10) == MessageId(-1, 1, 2, 3)
    assert MessageId(-1, 1, 2, 3, 10) <= MessageId(-1, 1, 2, 3)
    assert not MessageId(-1, 1, 2, 3, 10) > MessageId(-1, 1, 2, 3)
    assert MessageId(-1, 1, 2) != (1, 2, -1, -1, 0)


@pytest.mark.promise("2.10")
def test_texts_of_an_id() -> None:
    assert str(MessageId(1, 2, 3, 4)) == "(2,3,1,4)"
    assert MessageId(-1, 1, 0, 0).text == "1:0:-1:0"
    assert MessageId(-1, 1, 0).text == "1:0:-1"


def test_ids_of_a_batch() -> None:
    assert batch_ids(7, 8, 2, 3) == [MessageId(2, 7, 8, index) for index in range(3)]
    assert [one.batch_size() for one in batch_ids(7, 8, 2, 3)] == [3, 3, 3]


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x08\x01", b"hello"])
def test_bytes_that_are_no_id(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        MessageId.deserialize(data)


# ---- Service URLs ----


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("pulsar://localhost:6650", [("localhost", 6650)]),
        ("pulsar://localhost:6650/", [("localhost", 6650)]),
        ("pulsar://broker", [("broker", 6650)]),
        ("pulsar://a:1,b:2,a:1", [("a", 1), ("b", 2)]),
        ("pulsar://[::1]:77,[::2]", [("::1", 77), ("::2", 6650)]),
    ],
)
def test_service_urls(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_service_url(url) == addresses
    assert parse_service_url(",".join(map(format_address, addresses)).replace(",pulsar://", ",")) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6650", "http://a:1", "pulsar://", "pulsar://a:0", "pulsar://a:65536",
     "pulsar://a:x", "pulsar://a:1,", "pulsar://::1:5", "pulsar://a/b:5", "pulsar://a:٣"],
)  # fmt: skip
def test_what_is_no_service_url(url: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_service_url(url)


def test_a_service_url_with_tls_has_the_port_for_tls() -> None:
    assert parse_service_url("pulsar+ssl://a,b:1,[::1]") == [("a", 6651), ("b", 1), ("::1", 6651)]
    assert format_address(("a", 6651), tls=True) == "pulsar+ssl://a:6651"
    for url, use_tls, speaks in [
        ("pulsar+ssl://a", False, True),
        ("pulsar://a", True, True),
        ("pulsar+proxy://a", True, True),
        ("pulsar://a", False, False),
    ]:
        assert ClientConfiguration(url, use_tls=use_tls).speaks_tls(url) is speaks


@pytest.mark.parametrize("given", ["tls_certificate_file_path", "tls_private_key_file_path"])
def test_a_certificate_and_its_key_belong_together(given: str) -> None:
    with pytest.raises(InvalidConfiguration, match="belong together: pass both, or none"):
        ClientConfiguration("pulsar+ssl://a", **{given: "file.pem"})  # type: ignore[arg-type]


# ---- Configurations ----


@pytest.mark.parametrize(
    "value",
    [
        ClientConfiguration("pulsar://a:1"),
        ProducerConfiguration("topic", properties={"a": "b"}),
        ConsumerConfiguration("topic", "subscription", properties={"a": "b"}),
        ReaderConfiguration("topic", MessageId.earliest),
        ConsumerBatchReceivePolicy(10, -1, -1),
    ],
)
def test_configurations_pickle(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.promise("16.5")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ClientConfiguration", {"service_url": ""}),
        ("ClientConfiguration", {"operation_timeout_seconds": 0}),
        ("ClientConfiguration", {"connection_timeout_ms": "fast"}),
        ("ProducerConfiguration", {"topic": ""}),
        ("ProducerConfiguration", {"topic": "t", "max_pending_messages": 0}),
        ("ProducerConfiguration", {"topic": "t", "producer_name": ""}),
        ("ProducerConfiguration", {"topic": "t", "send_timeout_millis": -1}),
        ("ProducerConfiguration", {"topic": "t", "batching_max_messages": True}),
        ("ProducerConfiguration", {"topic": "t", "properties": {"a": 1}}),
        ("ProducerConfiguration", {"topic": "t", "message_routing_mode": PartitionsRoutingMode.CustomPartition}),
        ("ConsumerConfiguration", {"topic": "t", "subscription_name": ""}),
        ("ConsumerConfiguration", {"topic": "t", "subscription_name": "s", "receiver_queue_size": -1}),
        ("ReaderConfiguration", {"topic": "t", "start_message_id": "earliest"}),
        ("ReaderConfiguration", {"topic": "t", "start_message_id": MessageId.earliest, "receiver_queue_size": 0}),
        ("ConsumerBatchReceivePolicy", {"max_num_message": -1, "max_num_bytes": -1, "timeout_ms": -1}),
    ],
)
def test_impossible_configurations_are_refused(kind: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration):
        getattr(configuration, kind)(**options)


def test_results_take_the_name_of_the_error_or_of_its_base() -> None:
    assert Result.of(Timeout("late")) is Result.Timeout
    assert Result.of(ConnectError("no")) is Result.ConnectError
    assert Result.of(LedgerFenced("gone")) is Result.UnknownError
    assert Result.of(ValueError("no")) is Result.UnknownError
    assert Result.Ok == 0 and Result.ProducerQueueIsFull == 27


# ---- Start filters ----


def entry(entry_id: int, messages: int | None = None, publish_time: int = 1) -> ReceivedEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_time)
    if messages is not None:
        metadata.num_messages_in_batch = messages
    return ReceivedEntry("t", -1, 3, entry_id, metadata, b"")


@pytest.mark.parametrize(
    ("target", "inclusive", "what", "dropped", "kept"),
    [
        (MessageId(-1, 3, 5), False, entry(4), True, None),
        (MessageId(-1, 3, 5), False, entry(5), True, None),
        (MessageId(-1, 3, 5), True, entry(5), False, None),
        (MessageId(-1, 3, 5), False, entry(5, 3), True, None),
        (MessageId(-1, 3, 5), False, entry(6), False, None),
        (MessageId(-1, 3, 5, 1), False, entry(5, 4), False, [2, 3]),
        (MessageId(-1, 3, 5, 1), True, entry(5, 4), False, [1, 2, 3]),
        (MessageId(-1, 3, 5, 3), False, entry(5, 4), True, []),
        (MessageId(-1, 3, 5, 1), False, entry(6, 4), False, None),
    ],
)
def test_start_filters(
    target: MessageId, inclusive: bool, what: ReceivedEntry, dropped: bool, kept: list[int] | None
) -> None:
    start = StartFilter(target, inclusive)
    assert start.drops(what) is dropped
    wanted = start.wanted(what)
    assert (wanted and [index for index in range(4) if wanted(index)]) == kept


def test_a_start_time_holds_until_it_is_passed_or_the_topic_ended_when_it_was_sought() -> None:
    start = StartFilter(MessageId.earliest, True, 100, end=entry(1).position)
    assert start.drops(entry(0, publish_time=99)) and start.drops(entry(1, publish_time=99))
    assert not start.drops(entry(1, publish_time=100)) and start.is_passed(entry(1, publish_time=100))
    assert not start.drops(entry(2, publish_time=99)) and start.is_passed(entry(2, publish_time=99))
