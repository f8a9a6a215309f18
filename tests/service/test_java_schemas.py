"""Protobuf that Pulsar's Java client publishes is read as typed columns. A JVM runs the client, and Py4J calls it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.source_context_pb2 import SourceContext
from google.protobuf.type_pb2 import Field, Syntax, Type
from py4j.java_gateway import JavaGateway

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster
from support.spark.jars import jars

pytestmark = [
    pytest.mark.cluster_settings(brokers=2),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Py4J leaves sockets to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MESSAGES = [
    Type(
        name="air.Flight",
        fields=[
            Field(kind=Field.TYPE_STRING, cardinality=Field.CARDINALITY_OPTIONAL, number=1, name="carrier"),
            Field(kind=Field.TYPE_SINT64, number=-2, packed=True, name="ä"),
        ],
        oneofs=["delay", ""],
        source_context=SourceContext(file_name="flight.proto"),
        syntax=Syntax.SYNTAX_PROTO3,
    ),
    Type(),
    Type(source_context=SourceContext()),
]
"""Of a class that protoc has generated for Java and Python. It is described by three files."""


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    """A JVM with Pulsar's client; the tests are skipped, with the reason, where it cannot be had."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        pytest.skip("there is no Java: JAVA_HOME is not set")
    try:
        classes = os.pathsep.join(map(str, jars("client")))
    except OSError:
        pytest.skip("Pulsar's Java client is not in build/jars, and Maven Central does not answer")
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    program = str(Path(home, "bin", "java"))
    gateway = JavaGateway.launch_gateway(
        jarpath=str(jar), classpath=classes, java_path=program, die_on_exit=True, enable_auth=True
    )
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def publish(cluster: EmbeddedCluster, java: Any, topic: str, admin_url: str) -> Any:
    """Publish the messages with a schema of the Java client, and read the topic."""

    def run(kind: str, schema: str = "auto") -> pa.Table:
        with magnetar.Client(cluster.service_url) as keeper:
            keeper.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        message = java.com.google.protobuf.Type
        described = getattr(java.org.apache.pulsar.client.api.Schema, kind)(message.getDefaultInstance().getClass())
        client = java.org.apache.pulsar.client.api.PulsarClient.builder().serviceUrl(cluster.service_url).build()
        try:
            producer = client.newProducer(described).topic(topic).create()
            for one in MESSAGES:
                producer.send(message.parseFrom(one.SerializeToString()))
        finally:
            client.close()
        table = magnetar.to_arrow(topic, schema=schema, admin_url=admin_url)
        table.validate(full=True)
        return table

    return run


def test_protobuf_native_of_the_java_client_has_all_its_columns(publish: Any) -> None:
    names = [field.name for field in Type.DESCRIPTOR.fields]
    found = publish("PROTOBUF_NATIVE").select(names).to_pylist()
    as_json = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    expected = [MessageToDict(message, **as_json) for message in MESSAGES]
    assert found == [{name: one.get(name) for name in names} for one in expected]


def test_automatic_consumers_decode_protobuf_native_of_the_java_client(
    cluster: EmbeddedCluster, publish: Any, topic: str
) -> None:
    publish("PROTOBUF_NATIVE", "bytes")
    with magnetar.Client(cluster.service_url) as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest, schema=magnetar.AutoConsumeSchema())
        values = [reader.read_next(10_000).value() for _ in MESSAGES]
    assert [Type.FromString(value.SerializeToString()) for value in values] == MESSAGES
    assert [one.name for one in values[0].fields] == ["carrier", "ä"]


def test_protobuf_of_the_java_client_has_the_numbers_that_it_lists(publish: Any) -> None:
    names = ["name", "fields", "oneofs", "source_context", "syntax"]
    first, second, third = publish("PROTOBUF").select(names).to_pylist()
    assert first["name"] == "air.Flight" and first["oneofs"] == ["delay", ""] and first["syntax"] == 1
    assert [Field.FromString(one) for one in first["fields"]] == list(MESSAGES[0].fields)
    assert SourceContext.FromString(first["source_context"]) == MESSAGES[0].source_context
    assert (second["source_context"], third["source_context"]) == (None, b"")
