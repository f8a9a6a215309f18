"""Options of a write through the Spark data source."""

import re

import pytest

from magnetar.bulk.writing.columns import OF_READS, TYPES, check_columns
from magnetar.client.core.configuration import CompressionType, HashingScheme
from magnetar.protocol.errors import InvalidConfiguration, MagnetarError
from magnetar.spark.source.write_options import write_options

GIVEN = {"service.url": "pulsar://head:6650", "topic": "copy"}


def test_what_is_left_out_has_defaults() -> None:
    found = write_options(GIVEN)
    assert (found.topic, found.producer_name, found.order_by) == ("persistent://public/default/copy", None, ())
    assert (found.compression_type, found.hashing_scheme) == (CompressionType.NONE, HashingScheme.JavaStringHash)
    assert write_options({"service.url": "pulsar://a:1"}).topic is None


def test_options_of_producers_may_be_in_any_case() -> None:
    given = {"pulsar.producer.compressiontype": "zstd", "PULSAR.PRODUCER.hashingScheme": "Murmur3_32Hash"}
    given |= {"pulsar.producer.batchingMaxMessages": "7", "pulsar.producer.sendTimeoutMs": "9"}
    found = write_options(GIVEN | given | {"orderBy": "a, b", "pulsar.producer.blockIfQueueFull": "true"})
    assert (found.compression_type, found.hashing_scheme) == (CompressionType.ZSTD, HashingScheme.Murmur3_32Hash)
    assert (found.messages_max, found.send_timeout_ms, found.order_by) == (7, 9, ("a", "b"))


@pytest.mark.parametrize(
    ("options", "query", "name"),
    [
        ({"producerName": "result"}, None, "result"),
        ({"exactlyOnce": "true"}, "id", "id"),
        ({"exactlyOnce": "true", "producerName": "result"}, "id", "result"),
        ({}, "id", None),
        ({"exactlyOnce": "false"}, "id", None),
    ],
)
def test_a_name_makes_rows_known_again(options: dict[str, str], query: str | None, name: str | None) -> None:
    assert write_options(GIVEN | options, query).producer_name == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"service.url": ""}, "service.url is missing"),
        ({"service.url": "http://a:1"}, "is not a service URL"),
        ({"topic": "non-persistent://a/b/c"}, "only persistent topics"),
        ({"exactlyOnce": "true"}, "exactlyOnce needs producerName"),
        ({"exactlyOnce": "false", "producerName": "a"}, "leave one of them out"),
        ({"pulsar.producer.compressionType": "RAR"}, "must be one of NONE, LZ4, ZLIB, ZSTD, SNAPPY, not 'RAR'"),
        ({"pulsar.producer.batchingMaxBytes": "0"}, "batchingMaxBytes must be a whole number of 1 or more"),
        ({"topics": "a"}, "a write has no option 'topics'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(MagnetarError, match=re.escape(said)):
        write_options(GIVEN | options)


def test_columns_of_a_read_may_stay_and_others_are_refused() -> None:
    columns = {name: kinds[0] for name, kinds in TYPES.items()} | dict.fromkeys(OF_READS, "whatever")
    check_columns(columns)
    for name in ("__when", "more"):
        check_columns(columns | {name: "int"}, besides=[name])
        with pytest.raises(InvalidConfiguration, match=f"the column `{name}` is no"):
            check_columns(columns | {name: "int"})
    with pytest.raises(InvalidConfiguration, match="`__key` is binary, not string: cast it"):
        check_columns(columns | {"__key": "binary"})
