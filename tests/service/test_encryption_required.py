"""A broker with `encryptionRequireOnProducer`: which producers and messages it takes, from clients and raw frames."""

import shutil
import subprocess

import pulsar
import pytest

import magnetar
from magnetar.protocol.pulsar_pb2 import BaseCommand, EncryptionKeys, ServerError
from support.clients.wire_peer import WirePeer, entry
from support.files.key_files import write_key_files

pytestmark = pytest.mark.cluster_settings(encryption_require_on_producer=True)

TOPIC = "persistent://public/default/secrets"
ENCRYPTION_KEYS = [EncryptionKeys(key="k", value=b"v")]


@pytest.mark.parametrize(
    ("module", "error", "match"),
    [
        (magnetar, magnetar.Timeout, "Encryption is required"),
        (pulsar, (pulsar.BrokerMetadataError, pulsar.Timeout), None),
    ],
    ids=["ours", "official"],
)
def test_a_producer_without_encryption_is_refused_at_its_creation(cluster, module, error, match):
    """Clients take MetadataError for a passing error: they try again until their time is up, and ours then says why.

    The official one reports the error or the time-out, whichever comes first."""
    client = module.Client(cluster.service_url, operation_timeout_seconds=2)
    try:
        with pytest.raises(error, match=match):
            client.create_producer(TOPIC)
    finally:
        client.close()


def test_raw_frames_meet_pulsars_error_codes_and_messages(cluster):
    port = int(cluster.service_url.rsplit(":", 1)[1])

    async def talk():
        peer = await WirePeer.open(port)
        refused = await peer.producer(TOPIC, initial_subscription_name="never")
        answer = (refused.error, refused.message)
        assert answer == (ServerError.MetadataError, f"Encryption is required in {TOPIC}")
        assert (await peer.producer(TOPIC, encrypted=True)).producer_name
        peer.send_entry(entry(b"0", sequence_id=0, encryption_keys=ENCRYPTION_KEYS), 0)
        peer.send_entry(entry(b"1", sequence_id=1), 1)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        refused = await peer.expect(BaseCommand.SEND_ERROR, sequence_id=1)
        assert (refused.error, refused.message) == (ServerError.MetadataError, "Messages must be encrypted")
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.close()

    cluster.run(talk())
    topic = cluster.brokers[cluster.owner(TOPIC)].topics.loaded[TOPIC]
    assert not topic.subscriptions  # the refused producer has created none
    assert topic.publishing.published.entries == 1


@pytest.mark.promise("30.25")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key pair of this test")
def test_what_the_official_client_encrypts_is_taken_and_read_again(cluster, tmp_path):
    private, public = str(tmp_path / "private.pem"), str(tmp_path / "public.pem")
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(public, private)
    client = pulsar.Client(cluster.service_url, operation_timeout_seconds=10)
    try:
        topic = f"{TOPIC}-read"
        consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
        producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
        for number in range(10):
            producer.send(b"%d" % number)
        assert [consumer.receive(10_000).data() for _ in range(10)] == [b"%d" % number for number in range(10)]
    finally:
        client.close()


@pytest.mark.promise("30.25")
def test_what_our_client_encrypts_is_taken_and_read_again(cluster, tmp_path):
    keys = magnetar.CryptoKeyReader(*write_key_files(tmp_path))
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe("ours", "s", crypto_key_reader=keys)
        client.create_producer("ours", encryption_key="k", crypto_key_reader=keys).send(b"secret")
        assert consumer.receive(5000).data() == b"secret"
