"""The committed protobuf module is what the compiler makes of `pulsar.proto`, and the protocol is whole."""

import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.protocol import pulsar_pb2

ROOT = Path(__file__).resolve().parents[3]


def test_committed_code_is_what_the_compiler_makes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) is not installed")
    script = ROOT / "tests" / "tools" / "generate_protocol.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, capture_output=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["pulsar_pb2.py", "pulsar_pb2.pyi"]
    for name in made:
        committed = (ROOT / "protocol" / name).read_text()
        assert committed == (tmp_path / name).read_text(), f"run {script} and commit protocol/{name}"


def test_own_name_in_the_process_wide_pool() -> None:
    assert pulsar_pb2.DESCRIPTOR.name == "magnetar/protocol/pulsar.proto"
    assert pulsar_pb2.DESCRIPTOR.package == "magnetar.wire"


def test_the_protocol_is_whole() -> None:
    command = pulsar_pb2.BaseCommand.DESCRIPTOR
    numbers = [*range(1, 41), *range(50, 69), *range(70, 82)]
    assert sorted(field.number for field in command.fields) == numbers
    assert len(pulsar_pb2.MessageMetadata.DESCRIPTOR.fields) == 32
    assert len(pulsar_pb2.ServerError.values()) == 26
    assert len(pulsar_pb2.ProtocolVersion.values()) == 22
    assert len(pulsar_pb2.Schema.Type.values()) == 23


def test_defaults_and_presence_as_the_protocol_has_them() -> None:
    metadata = pulsar_pb2.MessageMetadata()
    assert metadata.num_messages_in_batch == 1
    assert not metadata.HasField("num_messages_in_batch")
    assert pulsar_pb2.MessageIdData().partition == -1
    assert pulsar_pb2.CommandSubscribe().durable
    assert pulsar_pb2.CommandProducerSuccess().last_sequence_id == -1
    # Repeated numbers are not packed, but packed ones are understood.
    words = pulsar_pb2.CommandMessage(ack_set=[1, 2]).SerializePartialToString()
    assert words == b"\x20\x01\x20\x02"
    assert list(pulsar_pb2.CommandMessage.FromString(b"\x22\x02\x01\x02").ack_set) == [1, 2]
