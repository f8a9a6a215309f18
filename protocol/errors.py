"""Errors: one class for each failure that a caller may react to.

Every error of Magnetar is a `MagnetarError`. It carries a message for people and `details`, a flat dictionary of
plain values for programs. All of them pickle (Ray carries them between processes) and travel over the internal RPC
as a triple `(name, message, details)` through `error_to_wire` and `error_from_wire`.

Two class attributes say how an error looks to others:

- `server_error`: the number of Pulsar's `ServerError` that a broker answers with. Several internal errors share one
  number.
- `retriable`: whether the *same* operation may succeed after a pause, although nothing was changed.

Some are also what Python calls such an error, so that a program may catch it by either name. A time-out is a
`TimeoutError`, a failed connection is a `ConnectionError`, and an impossible value is a `ValueError`.

Names equal those of the official Python client wherever it has the error. `OutcomeUnknown` and `EntryUnknown` are no
plain failures: after them the operation may have been executed.
"""

from typing import cast

from .server_errors import SERVER_ERRORS
from .server_errors import AuthenticationError as AuthenticationError
from .server_errors import AuthorizationError as AuthorizationError
from .server_errors import BrokerMetadataError as BrokerMetadataError
from .server_errors import BrokerPersistenceError as BrokerPersistenceError
from .server_errors import ChecksumError as ChecksumError
from .server_errors import ConsumerAssignError as ConsumerAssignError
from .server_errors import ConsumerBusy as ConsumerBusy
from .server_errors import ConsumerNotFound as ConsumerNotFound
from .server_errors import IncompatibleSchema as IncompatibleSchema
from .server_errors import InvalidTopicName as InvalidTopicName
from .server_errors import InvalidTxnStatusError as InvalidTxnStatusError
from .server_errors import MagnetarError as MagnetarError
from .server_errors import NotAllowedError as NotAllowedError
from .server_errors import ProducerBlockedQuotaExceededError as ProducerBlockedQuotaExceededError
from .server_errors import ProducerBlockedQuotaExceededException as ProducerBlockedQuotaExceededException
from .server_errors import ProducerBusy as ProducerBusy
from .server_errors import ProducerFenced as ProducerFenced
from .server_errors import ServiceUnitNotReady as ServiceUnitNotReady
from .server_errors import SubscriptionNotFound as SubscriptionNotFound
from .server_errors import TooManyLookupRequestException as TooManyLookupRequestException
from .server_errors import TopicNotFound as TopicNotFound
from .server_errors import TopicTerminated as TopicTerminated
from .server_errors import TransactionConflict as TransactionConflict
from .server_errors import TransactionCoordinatorNotFoundError as TransactionCoordinatorNotFoundError
from .server_errors import TransactionNotFound as TransactionNotFound
from .server_errors import UnknownError as UnknownError
from .server_errors import UnsupportedVersionError as UnsupportedVersionError
from .storage_errors import BadVersion as BadVersion
from .storage_errors import BookieReadOnly as BookieReadOnly
from .storage_errors import BookieUnavailable as BookieUnavailable
from .storage_errors import ConditionFailed as ConditionFailed
from .storage_errors import DigestConflict as DigestConflict
from .storage_errors import EntryCorrupt as EntryCorrupt
from .storage_errors import EntryUnknown as EntryUnknown
from .storage_errors import ForeignLedger as ForeignLedger
from .storage_errors import KeyExists as KeyExists
from .storage_errors import LedgerClosed as LedgerClosed
from .storage_errors import LedgerError as LedgerError
from .storage_errors import LedgerFenced as LedgerFenced
from .storage_errors import LedgerInDoubt as LedgerInDoubt
from .storage_errors import MetadataError as MetadataError
from .storage_errors import MetadataUnavailable as MetadataUnavailable
from .storage_errors import NoSuchEntry as NoSuchEntry
from .storage_errors import NoSuchKey as NoSuchKey
from .storage_errors import NoSuchLedger as NoSuchLedger
from .storage_errors import NotEnoughBookies as NotEnoughBookies
from .storage_errors import OutcomeUnknown as OutcomeUnknown
from .storage_errors import RecoveryFailed as RecoveryFailed

# ---- What happens on the client's side ----


class Timeout(MagnetarError, TimeoutError):
    """The operation did not end within its time-out; it may have been executed.

    What to do: Try again. A message whose send timed out may be stored already; if you send it again, consumers may get
        it twice.
    """

    retriable = True


class ConnectError(MagnetarError, ConnectionError):
    """No connection could be made.

    What to do: Check the service URL and that the cluster runs (`magnetar status`).
    """

    retriable = True


class ConnectionClosed(MagnetarError, ConnectionError):
    """The connection ended while the operation waited for an answer.

    What to do: Try again: the client connects again by itself.
    """

    retriable = True


class NotConnected(MagnetarError, ConnectionError):
    """There is no connection at the moment.

    What to do: Try again: the client connects again by itself.
    """

    retriable = True


class AlreadyClosed(MagnetarError):
    """The client, producer, consumer or reader was closed.

    What to do: Create a new client, producer, consumer or reader.
    """


class InvalidConfiguration(MagnetarError, ValueError):
    """An argument or option is impossible or contradicts another.

    What to do: Correct the argument that the message names.
    """

    server_error = 22


class InvalidUrl(MagnetarError, ValueError):
    """The text is not a service URL.

    What to do: Write `pulsar://host:port`, or several as `pulsar://host1:port,host2:port`.
    """


class InvalidMessage(MagnetarError):
    """The message cannot be sent as it is, or a stored message cannot be decoded.

    What to do: Correct what the message names. For a received message: acknowledge it to skip it, or read it with
    another client.
    """

    server_error = 22


class SchemaSerializationError(InvalidMessage):
    """A value does not fit the schema, or a payload cannot be decoded with it. A producer has sent nothing.

    What to do: Correct the field that the message names. For a received message: `data()` has the payload.
    """


class CryptoError(MagnetarError):
    """The message cannot be encrypted or decrypted.

    What to do: Check the crypto_key_reader: the message names the keys that open it.
    """


class ReadError(MagnetarError):
    """The connection failed while an answer was being read. For programs that catch it: here it is ConnectionClosed.

    What to do: Catch ConnectionClosed instead.
    """

    retriable = True


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


class MessageTooBig(MagnetarError):
    """The message is larger than the broker accepts.

    What to do: Send less in one message, or raise `maxMessageSize` and `nettyMaxFrameSizeBytes`.
    """

    server_error = 22


class CompactionError(MagnetarError):
    """A compaction of a topic failed. Readers of the compacted topic see what they saw before.

    What to do: Read the message, mend its cause, and compact again.
    """


class ProducerQueueIsFull(MagnetarError):
    """The producer has its maximum number of pending messages, and may not wait.

    What to do: Wait for receipts, raise `max_pending_messages`, or set `block_if_queue_full=True`.
    """

    retriable = True


class MemoryBufferIsFull(MagnetarError):
    """The client's memory limit is reached, and the producer may not wait.

    What to do: Wait for receipts, raise the client's `memory_limit_bytes`, or set `block_if_queue_full=True`.
    """

    retriable = True


class OperationNotSupported(MagnetarError):
    """The operation does not exist for this kind of topic, subscription or producer.

    What to do: Leave out the option that the message names, or use another call.
    """

    server_error = 22


class CumulativeAcknowledgementNotAllowedError(MagnetarError):
    """The subscription type has no cumulative acknowledgement.

    What to do: Acknowledge each message, or subscribe with ConsumerType.Exclusive.
    """

    server_error = 22


# ---- Bytes ----


class ProtocolError(MagnetarError):
    """The peer, or a disk, delivered bytes that do not follow the format.

    What to do: Check that the peer speaks Pulsar's protocol, and that no proxy changes its bytes.
    """

    server_error = 22


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
    """Java, PySpark or RayDP is missing, or its version does not work.

    What to do: Install what the message names: Java 11 to 21, or the packages for Spark.
    """


class CoordinatorUnavailable(MagnetarError):
    """No coordinator answers at the moment.

    What to do: Nothing: Ray restarts the coordinator. If it lasts, read `logs/coordinator.log` in the data
    directory.
    """

    server_error = 6
    retriable = True


class StaleEpoch(MagnetarError):
    """The caller's epoch was superseded by a newer one.

    What to do: Nothing: a newer owner or coordinator has taken over.
    """

    server_error = 6


class DirectoryLocked(MagnetarError):
    """Another live process holds the data directory.

    What to do: Stop the other cluster with `magnetar stop`, or choose another `--data-dir`.
    """


class CookieMismatch(MagnetarError):
    """The data directory belongs to another cluster or another bookie.

    What to do: Put the bookie's own directory back. Never copy one bookie's directory to another bookie.
    """


class DiskFull(MagnetarError):
    """The disk has no space left for the write.

    What to do: Free space on the disk that the message names.
    """

    server_error = 2


class StorageFailed(MagnetarError):
    """The disk failed a write or a sync, so its content can no longer be trusted.

    What to do: Check the disk. The bookie has ended and is started again.
    """

    server_error = 2


class SettingError(MagnetarError, ValueError):
    """A setting is unknown or has an impossible value.

    What to do: Correct the setting that the message names; `magnetar settings` lists all.
    """


# ---- Internal RPC ----


class RpcError(MagnetarError):
    """The peer failed with an error that has no class here; the message holds its text.

    What to do: Read the log of the peer.
    """


class RpcTimeout(RpcError):
    """The peer did not answer in time; the call may have been executed.

    What to do: Try again; read first whether the call was executed.
    """

    retriable = True


class RpcDisconnected(RpcError):
    """The connection ended before the answer; the call may have been executed.

    What to do: Try again; read first whether the call was executed.
    """

    retriable = True


class HandshakeRefused(RpcError):
    """The peer belongs to another cluster, is another node, or does not have the cluster's secret.

    What to do: Check that both processes belong to this cluster and were started from its data directory.
    """

    server_error = 3


_CLASSES: dict[str, type[MagnetarError]] = {
    name: value
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, MagnetarError)
}

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


def error_to_wire(error: BaseException) -> tuple[str, str, dict[str, object]]:
    """Any exception as `(name, message, details)` that msgpack can carry. An error of another library becomes
    `RpcError`.
    """
    if isinstance(error, MagnetarError):
        name = type(error).__name__
        if _CLASSES.get(name) is type(error):
            details = {str(key): _plain(value, 0) for key, value in error.details.items()}
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
        error.details = {str(key): value for key, value in cast("dict[object, object]", details).items()}
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
