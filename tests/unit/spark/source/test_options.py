"""Options of the Spark data source: names of the Pulsar connector, and values that cannot be meant."""

import json
import re

import pytest

import magnetar
from magnetar.protocol.errors import InvalidConfiguration, SparkUnavailable
from magnetar.spark.source.options import read_options

FULL = "persistent://public/default/"
GIVEN = {"admin.url": "http://head:8080", "topic": "flights"}


def test_what_is_left_out_has_the_defaults_of_the_connector() -> None:
    found = read_options(GIVEN)
    assert (found.topics, found.pattern) == ((FULL + "flights",), None)
    assert (found.starting, found.ending, found.fail_on_data_loss) == ("earliest", "latest", True)
    assert (found.columns, found.compacted, found.partitions_min) == (None, False, 1)
    assert (found.private_key_path, found.crypto_failure_action) == (None, "FAIL")
    assert found.schema == "auto"


def test_names_may_be_in_any_case_and_options_of_pulsar_clients_are_left_alone() -> None:
    found = read_options({"ADMIN.URL": "http://a:1", "Topics": "a,public/b/c", "pulsar.reader.receiverQueueSize": "1"})
    assert found.topics == (FULL + "a", "persistent://public/b/c")
    assert read_options({"admin.url": "http://a:1", "topicsPattern": "fl.*"}).pattern == "fl.*"
    found = read_options(GIVEN | {"privateKeyPath": "/keys", "CryptoFailureAction": "discard"})
    assert (found.private_key_path, found.crypto_failure_action) == ("/keys", "DISCARD")


def test_offsets_are_ids_in_hexadecimal_or_lists_of_signed_bytes() -> None:
    offsets = {"a": "0807100b", "b-partition-1": [8, -121, 1], "c": "latest"}
    found = read_options(GIVEN | {"startingOffsets": json.dumps(offsets), "endingTime": "1700000000000"})
    assert found.starting == {
        FULL + "a": b"\x08\x07\x10\x0b",
        FULL + "b-partition-1": b"\x08\x87\x01",
        FULL + "c": "latest",
    }
    assert found.ending == 1_700_000_000_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "soon"}, "startingOffsets must be earliest, latest or JSON"),
        ({"startingOffsets": "[1]"}, "startingOffsets must be an object"),
        ({"endingOffsets": json.dumps({"a": 7})}, "endingOffsets of a must be a message id"),
        ({"endingOffsets": json.dumps({"a": "xyz"})}, "endingOffsets of a: "),
        ({"startingOffsets": "latest", "startingTime": "1"}, "startingOffsets or startingTime, not both"),
        ({"startingTime": "-1"}, "startingTime must be a whole number of 0 or more"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({"maxBytesPerSplit": "10"}, "maxBytesPerSplit must be a whole number of 65536 or more"),
        ({"minPartitions": "0"}, "minPartitions must be a whole number of 1 or more"),
        ({"cryptoFailureAction": "send"}, "cryptoFailureAction must be one of FAIL, DISCARD, CONSUME, not 'send'"),
        ({"columns": "value,key", "schema": "bytes"}, "there is no column 'key'"),
        ({"columns": "value,value", "schema": "bytes"}, "are none, or not different"),
        ({"schema": "avro"}, "the option schema must be auto or bytes, not 'avro'"),
        ({"schema": "bytes", "schemaVersion": "1"}, "schema=bytes or schemaVersion, not both"),
        ({"schemaVersion": "new"}, "schemaVersion must be a whole number of 0 or more"),
        ({"topics": "b"}, "must be given, not topic, topics"),
        ({"startingOffset": "latest"}, "there is no option 'startingoffset'"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape(said)):
        read_options(GIVEN | given)


def test_a_topic_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="named twice"):
        read_options({"admin.url": "http://a:1", "topics": "a, persistent://public/default/a"})


def test_spark_of_the_other_extra_is_told_what_the_data_source_needs() -> None:
    with pytest.raises(SparkUnavailable, match=r"needs PySpark 4\.2"):
        _ = magnetar.spark.MagnetarDataSource
