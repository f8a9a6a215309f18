"""Encryption end to end: our client and the official one read each other's messages, and failures are handled."""

import os
import pickle
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.crypto import ciphers
from support.clients.sides import FACES, connect
from support.files.key_files import write_key_files
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures, until

SIZE_MAX = 20_000
Paths = tuple[str, str]
Action = magnetar.ConsumerCryptoFailureAction

pytestmark = pytest.mark.cluster_settings(max_message_size_bytes=SIZE_MAX)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Paths]:
    directory = tmp_path_factory.mktemp("keys")
    return {name: write_key_files(directory, f"{name}-") for name in ("one", "other")}


@pytest.fixture
async def ours(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=20) as client:
        yield client


class Reader(magnetar.CryptoKeyReader):
    """Keys by name, with metadata; notes what it was asked."""

    def __init__(self, keys: dict[str, Paths]) -> None:
        super().__init__()
        self.keys = keys
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> magnetar.EncryptionKeyInfo:
        return magnetar.EncryptionKeyInfo(Path(self.keys[key_name][0]).read_bytes(), {"owner": key_name})

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> magnetar.EncryptionKeyInfo:
        self.asked.append((key_name, dict(metadata)))
        return magnetar.EncryptionKeyInfo(Path(self.keys[key_name][1]).read_bytes())


@pytest.mark.promise("31.9")
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("compression", ["NONE", "ZLib"])
async def test_each_client_reads_what_the_other_encrypted(
    ours: AsyncClient, official_client: pulsar.Client, keys: dict[str, Paths], batching: bool, compression: str
) -> None:
    topic = f"both-{batching}-{compression}"
    own_reader, their_reader = magnetar.CryptoKeyReader(*keys["one"]), pulsar.CryptoKeyReader(*keys["one"])
    theirs = official_client.subscribe(topic, "theirs", crypto_key_reader=their_reader)
    own = await ours.subscribe(topic, "ours", crypto_key_reader=own_reader)
    producer = await ours.create_producer(
        topic, encryption_key="k", crypto_key_reader=own_reader, batching_enabled=batching,
        compression_type=magnetar.CompressionType[compression],
    )  # fmt: skip
    other = official_client.create_producer(
        topic, encryption_key="k", crypto_key_reader=their_reader, batching_enabled=batching,
        compression_type=getattr(pulsar.CompressionType, compression),
    )  # fmt: skip
    contents = [b"%d" % number * 50 for number in range(5)]
    await producer.send_many(contents)
    for content in contents:
        other.send_async(content, lambda *_: None)
    other.flush()
    for content in contents * 2:
        expected, found = theirs.receive(5000), await own.receive(5000)
        assert expected.data() == found.data() == content
        context, reference = found.encryption_context(), expected.encryption_context()
        assert context is not None and not context.is_decryption_failed()
        assert (context.keys()[0].key, len(context.keys()[0].value), len(context.param())) == ("k", 256, 12)
        assert context.uncompressed_message_size() == reference.uncompressed_message_size()
        await own.acknowledge(found)


async def test_encrypted_chunks_come_back(ours: AsyncClient, keys: dict[str, Paths]) -> None:
    reader = magnetar.CryptoKeyReader(*keys["one"])
    consumer = await ours.subscribe("chunks", "s", crypto_key_reader=reader)
    raw = await ours.subscribe("chunks", "raw", crypto_failure_action=Action.CONSUME)
    producer = await ours.create_producer(
        "chunks", encryption_key="k", crypto_key_reader=reader, batching_enabled=False, chunking_enabled=True
    )
    large = os.urandom(4 * SIZE_MAX)
    sent = await producer.send(large)
    message = await consumer.receive(5000)
    assert message.data() == large and message.message_id() == sent and str(sent).count("(") == 2
    opaque = await raw.receive(5000)
    assert len(opaque.data()) > len(large) and opaque.encryption_context().is_decryption_failed()


@pytest.mark.promise("31.9")
async def test_any_of_several_keys_opens(ours: AsyncClient, keys: dict[str, Paths]) -> None:
    producer = await ours.create_producer(
        "several", encryption_key=["one", "other"], crypto_key_reader=Reader(keys), batching_enabled=False
    )
    only_other = Reader({"other": keys["other"]})
    consumer = await ours.subscribe("several", "s", crypto_key_reader=only_other)
    for number in range(3):
        await producer.send(b"%d" % number)
    assert [(await consumer.receive(5000)).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert only_other.asked.count(("other", {"owner": "other"})) == 1  # the data key is remembered
    with pytest.raises(magnetar.CryptoError, match="'one'"):
        await ours.create_producer("several", encryption_key=["other", "one"], crypto_key_reader=only_other)


async def test_actions_for_what_cannot_be_decrypted(ours: AsyncClient, keys: dict[str, Paths]) -> None:
    wrong = magnetar.CryptoKeyReader(*keys["other"])
    options: dict[str, Any] = {"crypto_key_reader": wrong, "ack_group_time_ms": 0}
    failing = await ours.subscribe("actions", "fail", **options)
    discarding = await ours.subscribe("actions", "discard", crypto_failure_action=Action.DISCARD, **options)
    consuming = await ours.subscribe("actions", "consume", crypto_failure_action=Action.CONSUME, **options)
    reader = await ours.create_reader(
        "actions", magnetar.MessageId.earliest, crypto_key_reader=magnetar.CryptoKeyReader(*keys["one"])
    )
    encrypting = await ours.create_producer(
        "actions", encryption_key="k", crypto_key_reader=magnetar.CryptoKeyReader(*keys["one"])
    )
    await encrypting.send_many([b"a", b"b"])
    await (await ours.create_producer("actions")).send(b"plain")
    with pytest.raises(magnetar.CryptoError, match="stays unacknowledged"):
        await failing.receive(5000)
    assert (await failing.receive(5000)).data() == b"plain"
    assert (await discarding.receive(5000)).data() == b"plain"
    opaque = await consuming.receive(5000)
    context = opaque.encryption_context()
    assert context is not None and context.is_decryption_failed() and context.batch_size() == 2
    assert opaque.message_id().batch_index() == -1
    restored = pickle.loads(pickle.dumps(opaque))
    assert restored.encryption_context().is_decryption_failed() and restored.message_id() == opaque.message_id()
    data_key = ciphers.unwrap(Reader(keys).get_private_key("one", {}).key, context.keys()[0].value)
    assert b"a" in ciphers.open_sealed(data_key, context.param(), opaque.data())
    await consuming.acknowledge(opaque)
    assert (await consuming.receive(5000)).data() == b"plain"
    assert [(await reader.read_next(5000)).data() for _ in range(3)] == [b"a", b"b", b"plain"]
    for consumer in (failing, discarding, consuming):
        await consumer.close()
    again = await ours.subscribe("actions", "discard", **options)
    assert (await again.receive(5000)).data() == b"plain"  # the rest was acknowledged
    again = await ours.subscribe("actions", "fail", **options)
    with pytest.raises(magnetar.CryptoError):
        await again.receive(5000)


async def test_a_producer_without_a_key(ours: AsyncClient, tmp_path: Path) -> None:
    missing = magnetar.CryptoKeyReader(str(tmp_path / "none"), str(tmp_path / "none"))
    with pytest.raises(magnetar.CryptoError, match="public key 'k'"):
        await ours.create_producer("nokey", encryption_key="k", crypto_key_reader=missing)
    producer = await ours.create_producer(
        "nokey", encryption_key="k", crypto_key_reader=missing,
        crypto_failure_action=magnetar.ProducerCryptoFailureAction.SEND,
    )  # fmt: skip
    consumer = await ours.subscribe("nokey", "s")
    await producer.send(b"x")
    message = await consumer.receive(5000)
    assert message.data() == b"x" and message.encryption_context() is None
    with pytest.raises(magnetar.InvalidConfiguration, match="crypto_key_reader"):
        await ours.create_producer("nokey", encryption_key="k")
    with pytest.raises(magnetar.InvalidConfiguration, match="CryptoKeyReader"):
        await ours.subscribe("nokey", "t", crypto_key_reader="key.pem")  # type: ignore[arg-type]


def test_the_blocking_face(cluster: EmbeddedCluster, keys: dict[str, Paths]) -> None:
    reader = magnetar.CryptoKeyReader(*keys["one"])
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe("blocking", "s", crypto_key_reader=reader)
        client.create_producer("blocking", encryption_key="k", crypto_key_reader=reader).send(b"secret")
        message = consumer.receive(5000)
        assert message.data() == b"secret" and message.encryption_context() is not None


@pytest.mark.promise("31.9")
@pytest.mark.parametrize("face", FACES)
def test_each_face_opens_a_message_for_several_keys_with_one_of_them(
    cluster: EmbeddedCluster, keys: dict[str, Paths], face: str
) -> None:
    topic = f"one-of-several-{face}"
    with connect(cluster.service_url, face) as side, connect(cluster.service_url, "ours") as ours:
        consumer = side.client.subscribe(topic, "s", crypto_key_reader=side.module.CryptoKeyReader(*keys["other"]))
        producer = ours.client.create_producer(
            topic, encryption_key=["one", "other"], crypto_key_reader=Reader(keys), batching_enabled=False
        )
        producer.send(b"secret")
        assert side.values(consumer, 1) == [b"secret"]


@pytest.mark.promise("31.9")
@pytest.mark.parametrize("publisher", ["from_ours", "from_official"])
@pytest.mark.parametrize("face", FACES)
def test_the_three_actions_of_a_consumer_with_another_key(
    cluster: EmbeddedCluster, keys: dict[str, Paths], face: str, publisher: str
) -> None:
    """An encrypted message and a plain one, to one subscription for each action."""
    topic = f"three-{face}-{publisher}"
    with connect(cluster.service_url, face) as side, connect(cluster.service_url, publisher[5:]) as other:
        wrong, actions = side.module.CryptoKeyReader(*keys["other"]), side.module.ConsumerCryptoFailureAction
        failing, discarding, consuming = (
            side.client.subscribe(
                topic, action, crypto_key_reader=wrong, crypto_failure_action=getattr(actions, action)
            )
            for action in ("FAIL", "DISCARD", "CONSUME")
        )
        right = other.module.CryptoKeyReader(*keys["one"])
        options = {"batching_enabled": False}
        encrypting = other.client.create_producer(topic, encryption_key="k", crypto_key_reader=right, **options)
        encrypting.send(b"secret")
        other.client.create_producer(topic, **options).send(b"plain")
        opaque = consuming.receive(5000)
        assert opaque.encryption_context().is_decryption_failed() and b"secret" not in opaque.data()
        assert side.values(consuming, 1) == [b"plain"]
        assert side.values(discarding, 1, acknowledge=True) == [b"plain"]
        if side.module is magnetar:  # the official client logs the error only
            with pytest.raises(magnetar.CryptoError):
                failing.receive(5000)
        assert side.values(failing, 1, acknowledge=True) == [b"plain"]
        name = f"persistent://public/default/{topic}"
        left = {"FAIL": 1, "DISCARD": 0, "CONSUME": 2}

        def backlogs() -> dict[str, int]:
            return {one: found["msgBacklog"] for one, found in figures(cluster, name)["subscriptions"].items()}

        until(lambda: backlogs() == left)


@pytest.mark.promise("31.9")
@pytest.mark.parametrize("face", FACES)
def test_the_actions_of_a_producer_without_its_key(cluster: EmbeddedCluster, tmp_path: Path, face: str) -> None:
    with connect(cluster.service_url, face) as side:
        missing = side.module.CryptoKeyReader(str(tmp_path / "none"), str(tmp_path / "none"))
        with pytest.raises(side.module.CryptoError):  # ours when it is created, the official one when it sends
            side.client.create_producer(f"nokey-{face}", encryption_key="k", crypto_key_reader=missing).send(b"x")
        if side.module is pulsar:
            return  # it has no option for the action
        send = magnetar.ProducerCryptoFailureAction.SEND
        consumer = side.client.subscribe(f"nokey-{face}", "s")
        producer = side.client.create_producer(
            f"nokey-{face}", encryption_key="k", crypto_key_reader=missing, crypto_failure_action=send
        )
        producer.send(b"x")
        assert side.values(consumer, 1) == [b"x"]
