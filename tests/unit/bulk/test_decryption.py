"""Encrypted entries in a bulk read: the three actions, what is decrypted at all, and where keys come from."""

import asyncio
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.decryption import NO_KEYS, PrivateKeys, ReadKeys, action_named, keys_at, read_keys
from magnetar.bulk.read_plan import LedgerRange, ReadSplit
from magnetar.client.core.message_id import MessageId
from magnetar.client.crypto.encryption import MessageEncryptor
from magnetar.client.crypto.keys import ConsumerCryptoFailureAction, CryptoKeyReader, EncryptionKeyInfo
from magnetar.protocol.batches import encode_batch, encode_single
from magnetar.protocol.compression import CompressionType, compress
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import CryptoError, InvalidConfiguration
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.runtime.environment import Environment
from support.files.key_files import write_key_files
from support.stores.entries_of_producers import chunks_of
from support.stores.topic_in_memory import LedgersInMemory, RangeReaderInMemory

TOPIC = "persistent://public/default/secrets"
FAIL, DISCARD, CONSUME = ConsumerCryptoFailureAction


class Counting(CryptoKeyReader):
    """A key reader that counts what it is asked for."""

    asked = 0

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        self.asked += 1
        return super().get_private_key(key_name, metadata)


class Secrets(NamedTuple):
    """A topic with encrypted entries, and what opens them."""

    reader: RangeReaderInMemory
    split: ReadSplit
    public_path: str
    private_path: str
    other_path: str

    def rows(self, *columns: str, keys: ReadKeys = NO_KEYS) -> list[dict[str, object]]:
        return asyncio.run(self.reader.table([self.split], columns, keys))

    def values(self, keys: ReadKeys) -> list[object]:
        return [row["value"] for row in self.rows("value", keys=keys)]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secrets]:
    directory = tmp_path_factory.mktemp("keys")
    (public, private), (_, other) = write_key_files(directory, "a-"), write_key_files(directory, "b-")
    env = Environment.real(threads_max=1)
    encryptor = MessageEncryptor(["agency"], CryptoKeyReader(public, private), env.random)
    encryptor.renew()

    def header(sequence_id: int, **more: object) -> MessageMetadata:
        return MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1_000, **more)  # type: ignore[arg-type]

    keyed = b"".join(encode_single(value, partition_key=key) for value, key in ((b"c", "x"), (b"d", "y")))
    packed = compress(CompressionType.ZSTD, keyed)
    described = header(2, num_messages_in_batch=2, compression=CompressionType.ZSTD, uncompressed_size=len(keyed))
    entries = [
        build_entry(header(0, num_messages_in_batch=2), encode_batch([b"open", b"too "])),
        encryptor.build(header(1, partition_key="alone").SerializeToString(), b"b"),
        encryptor.build(described.SerializeToString(), packed),
        *chunks_of(b"efg", [1, 2], header(4), encryptor),
    ]
    ledgers = LedgersInMemory()
    ledger = ledgers.store(7, entries)
    split = ReadSplit(TOPIC, -1, TimeWindow(), (LedgerRange(ledger, 0, len(entries) - 1),))
    yield Secrets(RangeReaderInMemory(env, ledgers), split, public, private, other)
    env.close()


def test_with_the_key_everything_is_there(secrets: Secrets) -> None:
    keys = ReadKeys(CryptoKeyReader(secrets.public_path, secrets.private_path))
    assert secrets.values(keys) == [b"open", b"too ", b"b", b"c", b"d", b"efg"]
    rows = secrets.rows("__key", "__sequenceId", "__messageId", keys=keys)
    assert [row["__key"] for row in rows] == [None, None, "alone", "x", "y", None]
    assert [row["__sequenceId"] for row in rows] == [0, 1, 1, 2, 3, 4]
    ids = [MessageId.deserialize(row["__messageId"]).text for row in rows]  # type: ignore[arg-type]
    assert ids == ["7:0:-1:0", "7:0:-1:1", "7:1:-1", "7:2:-1:0", "7:2:-1:1", "7:3:-1;7:4:-1"]


def test_without_a_key_the_error_names_the_options(secrets: Secrets) -> None:
    with pytest.raises(CryptoError, match=r"crypto_key_reader.*privateKeyPath") as caught:
        secrets.values(NO_KEYS)
    assert (caught.value.details["ledger_id"], caught.value.details["entry_id"]) == (7, 1)
    with pytest.raises(CryptoError, match=r"does not fit|cannot be unwrapped"):
        secrets.values(ReadKeys(CryptoKeyReader(private_key_path=secrets.other_path)))


@pytest.mark.parametrize("has_other_key", [False, True])
def test_what_cannot_be_decrypted_is_left_out_or_given_as_it_is(secrets: Secrets, has_other_key: bool) -> None:
    reader = CryptoKeyReader(private_key_path=secrets.other_path) if has_other_key else None
    assert secrets.values(ReadKeys(reader, DISCARD)) == [b"open", b"too "]
    rows = secrets.rows("value", "__messageId", "__sequenceId", keys=ReadKeys(reader, CONSUME))
    assert [row["value"] for row in rows[:2]] == [b"open", b"too "]
    opaque = [row["value"] for row in rows[2:]]
    assert [len(value) for value in opaque if isinstance(value, bytes)] == [17, *map(len, opaque[1:])]  # type: ignore[arg-type]
    assert len(opaque) == 3 and len(opaque[2]) == 3 + 2 * 16  # type: ignore[arg-type]
    assert [MessageId.deserialize(row["__messageId"]).text for row in rows[2:]] == [  # type: ignore[arg-type]
        "7:1:-1",
        "7:2:-1",
        "7:3:-1;7:4:-1",
    ]
    assert [row["__sequenceId"] for row in rows[2:]] == [1, 2, 4]


@pytest.mark.parametrize("columns", [("__publishTime",), ("__messageId",), ("__topic", "__producerName")])
def test_columns_that_need_no_payload_need_no_key(secrets: Secrets, columns: tuple[str, ...]) -> None:
    reader = Counting(secrets.public_path, secrets.private_path)
    with_key = ReadKeys(reader)
    assert len(secrets.rows(*columns)) == 6
    assert secrets.rows(*columns) == secrets.rows(*columns, keys=with_key)
    assert reader.asked == 0
    for action, count in ((DISCARD, 2), (CONSUME, 5)):
        assert len(secrets.rows(*columns, keys=ReadKeys(None, action))) == count, (
            "the rows are the same for all columns"
        )
        assert len(secrets.rows(*columns, keys=ReadKeys(reader, action))) == 6
    assert reader.asked == 2, "a data key is unwrapped once in a split"
    with pytest.raises(CryptoError):
        secrets.rows("__key")


def test_keys_that_travel(secrets: Secrets, tmp_path: Path) -> None:
    private = Path(secrets.private_path).read_bytes()
    copy = tmp_path / "private.pem"
    copy.write_bytes(private)
    portable = read_keys(CryptoKeyReader(private_key_path=str(copy)), FAIL).portable()
    copy.unlink()
    travelled = pickle.loads(pickle.dumps(portable))
    assert len(secrets.values(travelled)) == 6
    for shown in (repr(travelled), repr(portable.reader), str(portable)):
        assert "PRIVATE" not in shown and private[40:60].decode() not in shown
    own = ReadKeys(Counting(private_key_path=secrets.private_path))
    assert own.portable() is own
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        read_keys(CryptoKeyReader(private_key_path=str(copy)), FAIL).portable()


def test_keys_in_a_file_or_in_a_directory(secrets: Secrets, tmp_path: Path) -> None:
    assert keys_at(None, FAIL) == NO_KEYS
    assert len(secrets.values(keys_at(secrets.private_path, FAIL))) == 6
    with pytest.raises(InvalidConfiguration, match="has 0 files"):
        keys_at(str(tmp_path), FAIL)
    (tmp_path / "agency.pem").write_bytes(Path(secrets.private_path).read_bytes())
    (tmp_path / "agency.pub").write_bytes(b"nothing")
    (tmp_path / "other.pem").write_bytes(Path(secrets.other_path).read_bytes())
    found = keys_at(str(tmp_path) + "/", FAIL)
    assert repr(found.reader) == "PrivateKeys(['agency', 'other'])"
    assert len(secrets.values(found)) == 6
    (tmp_path / "agency.pem").unlink()
    with pytest.raises(CryptoError, match=r"agency\.pem"):
        secrets.values(keys_at(str(tmp_path), FAIL))
    assert len(secrets.values(keys_at(str(tmp_path), DISCARD))) == 2
    (tmp_path / "large.pem").write_bytes(bytes(100_000))
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidConfiguration, match="private key"):
            keys_at(str(path), FAIL)


def test_options_that_cannot_be_meant() -> None:
    assert [action_named(name) for name in ("fail", "Discard", "CONSUME")] == [FAIL, DISCARD, CONSUME]
    with pytest.raises(InvalidConfiguration, match="FAIL, DISCARD, CONSUME"):
        action_named("ignore")
    with pytest.raises(InvalidConfiguration, match="must be a CryptoKeyReader, not str"):
        read_keys("key.pem", FAIL)
    with pytest.raises(InvalidConfiguration, match="ConsumerCryptoFailureAction"):
        read_keys(None, 7)  # type: ignore[arg-type]
    with pytest.raises(CryptoError):
        PrivateKeys({}).get_private_key("k", {})
