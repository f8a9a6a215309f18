"""Errors: one class for each failure that a caller may react to.

Every error of Magnetar is a `MagnetarError`. It carries a message for people and `details`, a flat dictionary of
plain values for programs. All of them pickle (Ray carries them between processes) and travel over the internal RPC
as a triple `(name, message, details)` through `error_to_wire` and `error_from_wire`.

The head of each class says how an error looks to others, and what ends because of it. Subclasses inherit that:

- `server_error`: the number of Pulsar's `ServerError` that a broker answers with. Several internal errors share one
  number.
- `http_status`: what the admin answers with.
- `retriable`: whether the *same* operation may succeed after a pause, although nothing was changed. A client's producer
  or consumer goes on trying then, and ends otherwise.
- `ends_topic`: whether a topic that gets it from its ledger closes on this broker, because another owner writes it now.

A class with a `flag` came later than the class above it. On the wire it has the name of that class, and the flag among
the details. So a process of an older release takes it for the class that it knows.

Some are also what Python calls such an error, so that a program may catch it by either name. A time-out is a
`TimeoutError`, a failed connection is a `ConnectionError`, and an impossible value is a `ValueError`.

Names equal those of the official Python client wherever it has the error. `OutcomeUnknown` and `EntryUnknown` are no
plain failures: after them the operation may have been executed.
"""

from typing import ClassVar, cast


class MagnetarError(Exception):
    """The root of all errors of Magnetar.

    `message` is for people; `details` are plain values (numbers, strings, bytes, lists, dictionaries) for programs.

    What to do: Catch it to catch every error of Magnetar; read the class and the message of the one that came.
    """

    server_error: ClassVar[int] = 0
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    ends_topic: ClassVar[bool] = False
    flag: ClassVar[str] = ""

    details: dict[str, object]

    def __init_subclass__(cls, **facts: int | str) -> None:
        super().__init_subclass__()
        for name, value in facts.items():
            assert name in MagnetarError.__annotations__, name
            setattr(cls, name, value)

    def __init__(self, message: str = "", /, **details: object) -> None:
        super().__init__(message)
        self.details = details

    @property
    def message(self) -> str:
        """The text for people; empty if none was given."""
        return cast(str, self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message or type(self).__name__


class UnknownError(MagnetarError, server_error=0, retriable=True):
    """The peer failed with an error that has no number of its own.

    What to do: Read the message, and the broker's log for the same time.
    """


class BrokerMetadataError(MagnetarError, server_error=1, retriable=True):
    """The broker could not read or write its metadata.

    What to do: Nothing: clients try again. If it lasts, check that the coordinator answers (`magnetar status`).
    """


class SubscriptionInUse(BrokerMetadataError, http_status=412, flag="in_use"):
    """The subscription has consumers, so it is not deleted.

    What to do: Close its consumers first, or force the deletion.
    """


class BrokerPersistenceError(MagnetarError, server_error=2, retriable=True):
    """The broker could not store or read messages.

    What to do: Check with `magnetar status` that enough bookies are alive and that no disk is full.
    """


class AuthenticationError(MagnetarError, server_error=3, http_status=401):
    """The peer refused the credentials.

    What to do: Give the process the credentials of this cluster.
    """


class AuthorizationError(MagnetarError, server_error=4, http_status=403):
    """The peer accepted the credentials, but they do not permit the call.

    What to do: Ask the operator for the permission, or use a call that your role permits.
    """


class ConsumerBusy(MagnetarError, server_error=5):
    """The subscription already has a consumer and admits no second one.

    What to do: Close the other consumer, subscribe under another name, or use ConsumerType.Shared on both.
    """


class ServiceUnitNotReady(MagnetarError, server_error=6, http_status=503, retriable=True):
    """The topic is being loaded or moved, or cannot be stored at the moment (ServiceNotReady).

    What to do: Nothing: clients try again until their time-out. If it lasts, run `magnetar status`.
    """


class NoSuchListener(ServiceUnitNotReady, flag="listener"):
    """The topic's broker has no address for the listener that the client names.

    What to do: Correct `listener_name`, or add the listener to `advertisedListeners` of all brokers.
    """


class ProducerBlockedQuotaExceededError(MagnetarError, server_error=7, retriable=True):
    """The backlog quota is used up, and the broker holds the producer's messages back.

    What to do: Consume the backlog, or raise the quota. Clients try again by themselves until their time-out.
    """


class ProducerBlockedQuotaExceededException(MagnetarError, server_error=8):
    """The backlog quota is used up, and the broker refused the producer.

    What to do: Consume the backlog, or raise the quota, then create the producer again.
    """


class ChecksumError(MagnetarError, server_error=9):
    """The CRC32C of an entry does not match its bytes.

    What to do: Send the message again. If it recurs, check the network and the memory of the machine.
    """


class UnsupportedVersionError(MagnetarError, server_error=10):
    """The peer's protocol version lacks the requested feature.

    What to do: Upgrade the client or the broker, whichever is older.
    """


class TopicNotFound(MagnetarError, server_error=11, http_status=404):
    """The topic does not exist, and it may not be created.

    What to do: Check the name, create the topic, or set `allowAutoTopicCreation=true`.
    """


class SubscriptionNotFound(MagnetarError, server_error=12, http_status=404):
    """The subscription does not exist, and it may not be created.

    What to do: Check the name, create the subscription, or set `allowAutoSubscriptionCreation=true`.
    """


class ConsumerNotFound(MagnetarError, server_error=13):
    """The connection has no consumer with that id.

    What to do: Subscribe again.
    """


class TooManyLookupRequestException(MagnetarError, server_error=14, http_status=429, retriable=True):
    """Too many requests are in flight (TooManyRequests).

    What to do: Wait and try again with fewer requests at a time, or raise `maxConcurrentLookupRequest`.
    """


class TopicTerminated(MagnetarError, server_error=15):
    """The topic was terminated: it can be read, but not written.

    What to do: Publish to another topic.
    """


class ProducerBusy(MagnetarError, server_error=16):
    """Another producer with that name is connected.

    What to do: Close the other producer, choose another `producer_name`, or leave it out.
    """


class InvalidTopicName(MagnetarError, ValueError, server_error=17, http_status=412):
    """The text is not a topic name.

    What to do: Write `topic` or `persistent://tenant/namespace/topic`.
    """


class IncompatibleSchema(MagnetarError, server_error=18, http_status=409):
    """The schema is incompatible with the topic's schemas.

    What to do: Use a schema that goes with the topic's, as the message says. Or change `schemaCompatibilityStrategy` of
        the namespace. A schema that is malformed is refused with this error, too.
    """


class InvalidSchema(IncompatibleSchema, http_status=422, flag="invalid"):
    """The definition of the schema is malformed.

    What to do: Correct the definition where the message says.
    """


class ConsumerAssignError(MagnetarError, server_error=19):
    """The dispatcher could not place the consumer (for example overlapping sticky ranges).

    What to do: Subscribe with ranges of hashes that do not overlap.
    """


class TransactionCoordinatorNotFoundError(MagnetarError, server_error=20):
    """No transaction coordinator with that id exists here.

    What to do: Transactions are not supported here. Another Pulsar: enable them.
    """


class InvalidTxnStatusError(MagnetarError, server_error=21):
    """The transaction's state does not permit the request.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """


class NotAllowedError(MagnetarError, server_error=22, http_status=412):
    """The request is forbidden in this state or by a policy.

    What to do: Leave out the option or call that the message names.
    """


class ConflictError(NotAllowedError, http_status=409, flag="exists"):
    """Something that exists stands against the request.

    What to do: Use what exists, or remove it first.
    """


class ReservedName(NotAllowedError, http_status=400, flag="reserved"):
    """The name is reserved for the system.

    What to do: Choose another name.
    """


class TransactionConflict(MagnetarError, server_error=23):
    """Another transaction acknowledged the same message.

    What to do: Transactions are not supported here. Another Pulsar: abort and try again.
    """


class TransactionNotFound(MagnetarError, server_error=24):
    """No transaction with that id is known.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """


class ProducerFenced(MagnetarError, server_error=25):
    """A newer producer took the topic over, so this producer must stop.

    What to do: Close this producer. Create a new one only if this process must take the topic over again.
    """


SERVER_ERRORS: tuple[type[MagnetarError], ...] = tuple(MagnetarError.__subclasses__())
"""Indexed by number: the classes above stand in the order of their numbers."""


# ---- What happens on the client's side ----


class Timeout(MagnetarError, TimeoutError, http_status=504, retriable=True):
    """The operation did not end within its time-out; it may have been executed.

    What to do: Try again. A message whose send timed out may be stored already; if you send it again, consumers may get
        it twice.
    """


class ConnectError(MagnetarError, ConnectionError, retriable=True):
    """No connection could be made.

    What to do: Check the service URL and that the cluster runs (`magnetar status`).
    """


class TlsError(ConnectError, retriable=False):
    """The broker could be reached, but no connection with TLS could be made.

    What to do: The message says why: the certificate, its host name, its CA, or a port without TLS.
    """


class ConnectionClosed(MagnetarError, ConnectionError, retriable=True):
    """The connection ended while the operation waited for an answer.

    What to do: Try again: the client connects again by itself.
    """


class NotConnected(MagnetarError, ConnectionError, retriable=True):
    """There is no connection at the moment.

    What to do: Try again: the client connects again by itself.
    """


class AlreadyClosed(MagnetarError, http_status=503):
    """The client, producer, consumer or reader was closed.

    What to do: Create a new client, producer, consumer or reader.
    """


class InvalidConfiguration(MagnetarError, ValueError, server_error=22, http_status=412):
    """An argument or option is impossible or contradicts another.

    What to do: Correct the argument that the message names.
    """


class InvalidUrl(MagnetarError, ValueError):
    """The text is not a service URL.

    What to do: Write `pulsar://host:port`, or several as `pulsar://host1:port,host2:port`.
    """


class InvalidMessage(MagnetarError, server_error=22):
    """The message cannot be sent as it is, or a stored message cannot be decoded.

    What to do: Correct what the message names. For a received message: acknowledge it to skip it, or read it with
    another client.
    """


class SchemaSerializationError(InvalidMessage):
    """A value does not fit the schema, or a payload cannot be decoded with it. A producer has sent nothing.

    What to do: Correct the field that the message names. For a received message: `data()` has the payload.
    """


class CryptoError(MagnetarError):
    """The message cannot be encrypted or decrypted.

    What to do: Check the crypto_key_reader: the message names the keys that open it.
    """


class ReadError(MagnetarError, retriable=True):
    """The connection failed while an answer was being read. For programs that catch it: here it is ConnectionClosed.

    What to do: Catch ConnectionClosed instead.
    """


class Interrupted(MagnetarError):
    """The call was interrupted. For programs that catch it: nothing here raises it.

    What to do: Nothing: no call of Magnetar raises it.
    """


class ErrorGettingAuthenticationData(MagnetarError):
    """The authentication plugin gave no credentials. For programs that catch it: nothing here raises it.

    What to do: Nothing: no call of Magnetar raises it.
    """


class ConsumerNotInitialized(MagnetarError):
    """The consumer was never opened. For programs that catch it: nothing here raises it.

    What to do: Nothing: no call of Magnetar raises it.
    """


class ProducerNotInitialized(MagnetarError):
    """The producer was never opened. For programs that catch it: nothing here raises it.

    What to do: Nothing: no call of Magnetar raises it.
    """


class LookupError(MagnetarError):
    """No broker answered which broker owns the topic.

    What to do: Check that a broker is alive (`magnetar status`), then try again.
    """


class MessageTooBig(MagnetarError, server_error=22):
    """The message is larger than the broker accepts.

    What to do: Send less in one message, or raise `maxMessageSize` and `nettyMaxFrameSizeBytes`.
    """


class CompactionError(MagnetarError):
    """A compaction of a topic failed. Readers of the compacted topic see what they saw before.

    What to do: Read the message, mend its cause, and compact again.
    """


class ProducerQueueIsFull(MagnetarError, retriable=True):
    """The producer has its maximum number of pending messages, and may not wait.

    What to do: Wait for receipts, raise `max_pending_messages`, or set `block_if_queue_full=True`.
    """


class MemoryBufferIsFull(MagnetarError, retriable=True):
    """The client's memory limit is reached, and the producer may not wait.

    What to do: Wait for receipts, raise the client's `memory_limit_bytes`, or set `block_if_queue_full=True`.
    """


class OperationNotSupported(MagnetarError, server_error=22):
    """The operation does not exist for this kind of topic, subscription or producer.

    What to do: Leave out the option that the message names, or use another call.
    """


class CumulativeAcknowledgementNotAllowedError(MagnetarError, server_error=22):
    """The subscription type has no cumulative acknowledgement.

    What to do: Acknowledge each message, or subscribe with ConsumerType.Exclusive.
    """


# ---- Bytes ----


class ProtocolError(MagnetarError, server_error=22):
    """The peer, or a disk, delivered bytes that do not follow the format.

    What to do: Check that the peer speaks Pulsar's protocol, and that no proxy changes its bytes.
    """


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than are allowed. It was not read.

    What to do: Send less at a time, or raise `maxMessageSize` and `nettyMaxFrameSizeBytes`.
    """


# ---- Cluster, coordinator, disk, settings ----


class ClusterError(MagnetarError):
    """The cluster cannot be started, found or stopped.

    What to do: Do what the message says.
    """


class RestartStopped(ClusterError):
    """A rolling restart went no further: the next process could not be restarted safely, or the last is not back.

    What to do: Mend what the message names, then restart the rest with the command in the message.
    """


class FormatTooNew(ClusterError):
    """Stored data has a format of a later version of Magnetar, which this version cannot read. Nothing was changed.

    What to do: Start the version that wrote it, or a later one.
    """


class BackupDamaged(ClusterError):
    """The file is no whole backup of the metadata, or its bytes have changed since it was written.

    What to do: Use another backup.
    """


class SparkUnavailable(MagnetarError):
    """Java, PySpark or RayDP is missing, or their versions do not work together.

    What to do: Install what the message names: Java 17, or RayDP and PySpark of versions that work together.
    """


class ConsumeFailed(MagnetarError):
    """The workers of `consume` end again and again, and handle no message meanwhile; or their process has left Ray.

    What to do: Read the error that the message names. It is often one of the class's constructor, a module that the
    workers lack, or a message that ends its process. Mend it, and call `consume` again: nothing was lost.
    """


class FollowFailed(MagnetarError):
    """The readers of a followed topic end again and again, and give no rows meanwhile.

    What to do: Read the error that the message names, and the logs of Ray's workers. Often their processes lack memory,
    or Magnetar. Mend it, and iterate again: nothing was lost.
    """


class CoordinatorUnavailable(MagnetarError, server_error=6, http_status=503, retriable=True):
    """No coordinator answers at the moment.

    What to do: Nothing: Ray restarts the coordinator. If it lasts, read `logs/coordinator.log` in the data
    directory.
    """


class StaleEpoch(MagnetarError, server_error=6, ends_topic=True):
    """The caller's epoch was superseded by a newer one.

    What to do: Nothing: a newer owner or coordinator has taken over.
    """


class DirectoryLocked(MagnetarError):
    """Another live process holds the data directory.

    What to do: Stop the other cluster with `magnetar stop`, or choose another `--data-dir`.
    """


class CookieMismatch(MagnetarError):
    """The data directory belongs to another cluster or another bookie.

    What to do: Put the bookie's own directory back. Never copy one bookie's directory to another bookie.
    """


class DiskFull(MagnetarError, server_error=2):
    """The disk has no space left for the write.

    What to do: Free space on the disk that the message names.
    """


class StorageFailed(MagnetarError, server_error=2):
    """The disk failed a write or a sync, so its content can no longer be trusted.

    What to do: Check the disk. The bookie has ended and is started again.
    """


class SettingError(MagnetarError, ValueError):
    """A setting is unknown or has an impossible value.

    What to do: Correct the setting that the message names; `magnetar settings` lists all.
    """


# ---- Internal RPC ----


class RpcError(MagnetarError):
    """The peer failed with an error that has no class here; the message holds its text.

    What to do: Read the log of the peer.
    """


class RpcTimeout(RpcError, retriable=True):
    """The peer did not answer in time; the call may have been executed.

    What to do: Try again; read first whether the call was executed.
    """


class RpcDisconnected(RpcError, retriable=True):
    """The connection ended before the answer; the call may have been executed.

    What to do: Try again; read first whether the call was executed.
    """


class HandshakeRefused(RpcError, server_error=3):
    """The peer belongs to another cluster, is another node, or does not have the cluster's secret.

    What to do: Check that both processes belong to this cluster and were started from its data directory.
    """


class LedgerError(MagnetarError, server_error=2):
    """The root of the errors of ledgers and bookies.

    What to do: Read the class and the message of the one that came.
    """


class LedgerFenced(LedgerError, server_error=6, ends_topic=True):
    """Another owner fenced the ledger, so this writer must stop.

    What to do: Nothing: the topic's new owner serves it, and clients look it up again.
    """


class NoSuchLedger(LedgerError):
    """The ledger does not exist, or the bookie does not know it.

    What to do: Nothing if the ledger was deleted. After a restore of metadata see the operations guide.
    """


class NoSuchEntry(LedgerError):
    """The ledger has no such entry. The answer is certain.

    What to do: Nothing: the entry was never acknowledged, or it was deleted.
    """


class LedgerClosed(LedgerError):
    """The ledger is closed and takes no more entries.

    What to do: Nothing: the broker writes to the topic's next ledger.
    """


class NotEnoughBookies(LedgerError, server_error=6, http_status=503, retriable=True):
    """Fewer bookies are usable than the ack quorum needs.

    What to do: Start the missing bookies or add some; check for full disks with `magnetar status`.
    """


class EntryUnknown(LedgerError, retriable=True):
    """It is unknown whether the entry exists: a time-out, a lost connection, or a bookie in limbo.

    What to do: Nothing: the reader tries again. If it lasts, start the missing bookies.
    """


class EntryCorrupt(LedgerError):
    """The stored bytes of an entry fail their checksum or name another entry.

    What to do: Nothing: the reader takes another copy and the auditor repairs this one. If it recurs, check the
    disk.
    """


class DigestConflict(LedgerError):
    """Different bytes are stored under the same ledger and entry id.

    What to do: Report it with the logs of the bookies: two writers wrote to one ledger.
    """


class ForeignLedger(LedgerError):
    """A bookie holds another ledger with this id, which was created before the metadata was restored from a backup. The
    bookie's answer says nothing about the requested ledger.

    What to do: Nothing: the reader asks the other bookies. See `restored` in `magnetar status`.
    """


class BookieReadOnly(LedgerError, server_error=6, retriable=True):
    """The bookie is read-only, because its disk is full or has failed.

    What to do: Free space on the bookie's disk: remove other files, or consume or delete the topics that fill it.
    """


class BookieUnavailable(LedgerError, server_error=6, retriable=True):
    """The bookie cannot be reached or is overloaded.

    What to do: Check that the bookie runs (`magnetar status`) and that its disk keeps up.
    """


class RecoveryFailed(LedgerError, server_error=6, retriable=True):
    """Recovery could not find the end of a ledger with the bookies that answered.

    What to do: Start the missing bookies. The broker tries again by itself.
    """


class LedgerInDoubt(RecoveryFailed):
    """After a restore of older metadata, too few bookies said what they hold of a ledger that was open in the backup.

    What to do: Start the bookies that the message names, or restore a newer backup. The broker tries again by itself.
    """


# ---- Metadata ----


class MetadataError(MagnetarError, server_error=1):
    """The root of all errors of the metadata store.

    What to do: Read the class and the message of the one that came.
    """


class BadVersion(MetadataError, http_status=409):
    """Compare-and-set found another version of the record: another writer was faster.

    What to do: Read the record again and repeat the change.
    """


class KeyExists(BadVersion):
    """The key was to be created, but it already exists.

    What to do: Choose another name, or use the record that exists.
    """


class NoSuchKey(MetadataError, http_status=404):
    """The key does not exist.

    What to do: Check the name.
    """


class ConditionFailed(MetadataError, server_error=6, retriable=True):
    """Another record, on which the write depends, has changed. Nothing was executed.

    What to do: Nothing: the caller reads both records again and decides again.
    """


class MetadataUnavailable(MetadataError, server_error=6, http_status=503, retriable=True):
    """The metadata store cannot be reached. Nothing was executed.

    What to do: Check the disk of the coordinator, or PostgreSQL.
    """


class OutcomeUnknown(MetadataError):
    """The connection broke after the request was sent, so it may have been executed.

    What to do: Read the record before you repeat the change.
    """


_CLASSES: dict[str, type[MagnetarError]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, MagnetarError)
}

_BY_FLAG: dict[str, type[MagnetarError]] = {kind.flag: kind for kind in _CLASSES.values() if kind.flag}
_DETAIL_DEPTH_MAX = 8


def server_error_code(error: BaseException) -> int:
    """Pulsar's `ServerError` number for any exception; 0 (UnknownError) for those that are not ours."""
    return error.server_error if isinstance(error, MagnetarError) else 0


def exception_for_server_error(code: int, message: str) -> MagnetarError:
    """The error that a broker's answer stands for; `UnknownError`, with the number kept, for an unknown number."""
    if 0 <= code < len(SERVER_ERRORS):
        return SERVER_ERRORS[code](message)
    return UnknownError(message, server_error=code)


def is_retriable(error: BaseException) -> bool:
    """Whether the same operation may be tried again after a pause. Errors of sockets and time-outs of the loop may."""
    if isinstance(error, MagnetarError):
        return error.retriable
    return isinstance(error, ConnectionError | TimeoutError)


def ends_topic(error: BaseException) -> bool:
    """Whether a topic whose ledger fails so has another owner."""
    return isinstance(error, MagnetarError) and error.ends_topic


def error_to_wire(error: BaseException) -> tuple[str, str, dict[str, object]]:
    """Any exception as `(name, message, details)` that msgpack can carry. An error of another library becomes
    `RpcError`.
    """
    if isinstance(error, MagnetarError):
        name = type(error).__name__
        if _CLASSES.get(name) is type(error):
            details = {str(key): _plain(value, 0) for key, value in error.details.items()}
            if error.flag:
                name, details[error.flag] = type(error).__mro__[1].__name__, True
            return name, _text(error.message), details
    return "RpcError", _text(f"{type(error).__name__}: {error}"), {}


def error_from_wire(name: object, message: object, details: object) -> MagnetarError:
    """The error that a triple of `error_to_wire` stands for. Anything else becomes an `RpcError`."""
    error_class = _CLASSES.get(name) if isinstance(name, str) else None
    text = message if isinstance(message, str) else repr(message)
    if error_class is None:
        error = RpcError(f"{name}: {text}")
    else:
        error = error_class(text)
    if isinstance(details, dict):
        carried = {str(key): value for key, value in cast("dict[object, object]", details).items()}
        for flag in carried.keys() & _BY_FLAG.keys():
            if carried[flag] is True and _BY_FLAG[flag].__mro__[1] is error_class:
                error = _BY_FLAG[flag](text)
                del carried[flag]
        error.details = carried
    return error


def _text(value: str) -> str:
    """`value` without lone surrogates, which UTF-8 cannot carry."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _plain(value: object, depth: int) -> object:
    """`value` in types that msgpack carries; anything else becomes its `repr`."""
    if value is None or isinstance(value, bool | float | bytes):
        return value
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < (1 << 64) else str(value)
    if isinstance(value, str):
        return _text(value)
    if depth < _DETAIL_DEPTH_MAX:
        if isinstance(value, list | tuple):
            return [_plain(item, depth + 1) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return {_text(str(key)): _plain(item, depth + 1) for key, item in items}
    return _text(repr(value))


# ---- Ledgers and bookies ----
