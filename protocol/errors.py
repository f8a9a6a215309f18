"""Errors: everything that can go wrong and that somebody may react to, one class each.

Every error of Magnetar is a `MagnetarError`. It carries a message for people and `details`, a flat dictionary of
plain values for programs. All of them pickle (Ray carries them between processes) and travel over the internal RPC
as a triple `(name, message, details)` through `error_to_wire` and `error_from_wire`.

Two class attributes say how an error looks to others:

- `server_error`: the number of Pulsar's `ServerError` that a broker answers with. Several internal errors share one
  number.
- `retriable`: whether the *same* operation may succeed later, after a pause, without anybody changing anything.

Names equal those of the official Python client wherever it has the error. `OutcomeUnknown` and `EntryUnknown` are
apart from plain failures on purpose: the operation may have been executed.
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

# ---- What happens on the client's side ----


class Timeout(MagnetarError):
    """The operation did not end in the time it was given; it may have been executed."""

    retriable = True


class ConnectError(MagnetarError):
    """No connection could be made."""

    retriable = True


class ConnectionClosed(MagnetarError):
    """The connection ended while the operation waited on it."""

    retriable = True


class NotConnected(MagnetarError):
    """There is no connection at the moment."""

    retriable = True


class AlreadyClosed(MagnetarError):
    """The client, producer, consumer or reader was closed."""


class InvalidConfiguration(MagnetarError):
    """An argument or option is impossible or contradicts another."""

    server_error = 22


class InvalidUrl(MagnetarError):
    """The text is no service URL."""


class InvalidMessage(MagnetarError):
    """The message cannot be sent as it is, or what is stored of it cannot be read."""

    server_error = 22


class CryptoError(MagnetarError):
    """The message cannot be encrypted or decrypted."""


class ReadError(MagnetarError):
    """The connection failed while an answer was being read. For programs that catch it: here it is ConnectionClosed."""

    retriable = True


class Interrupted(MagnetarError):
    """The call was interrupted. For programs that catch it: nothing here raises it."""


class ErrorGettingAuthenticationData(MagnetarError):
    """The authentication plugin gave no credentials. For programs that catch it: nothing here raises it."""


class ConsumerNotInitialized(MagnetarError):
    """The consumer was never opened. For programs that catch it: nothing here raises it."""


class ProducerNotInitialized(MagnetarError):
    """The producer was never opened. For programs that catch it: nothing here raises it."""


class LookupError(MagnetarError):
    """No broker would say who owns the topic."""


class MessageTooBig(MagnetarError):
    """The message is larger than the broker accepts."""

    server_error = 22


class ProducerQueueIsFull(MagnetarError):
    """The producer has as many messages pending as it may, and was told not to wait."""

    retriable = True


class MemoryBufferIsFull(MagnetarError):
    """The client's memory limit is reached, and the producer was told not to wait."""

    retriable = True


class OperationNotSupported(MagnetarError):
    """The operation does not exist for this kind of topic, subscription or producer."""

    server_error = 22


class CumulativeAcknowledgementNotAllowedError(MagnetarError):
    """The subscription type knows individual acknowledgement only."""

    server_error = 22


# ---- Bytes ----


class ProtocolError(MagnetarError):
    """Bytes that are not what the protocol says."""

    server_error = 22


class FrameTooLarge(ProtocolError):
    """A frame announces more bytes than are allowed; nothing of it was buffered."""


# ---- Ledgers and bookies ----


class LedgerError(MagnetarError):
    """The root of the errors of ledgers and bookies."""

    server_error = 2


class LedgerFenced(LedgerError):
    """Another owner fenced the ledger: this writer must stop for good."""

    server_error = 6


class NoSuchLedger(LedgerError):
    """The ledger does not exist (or the bookie never heard of it)."""


class NoSuchEntry(LedgerError):
    """The ledger has no such entry: a definite no, never a guess."""


class LedgerClosed(LedgerError):
    """The ledger is closed and takes no more entries."""


class NotEnoughBookies(LedgerError):
    """Fewer bookies are usable than the ack quorum needs."""

    server_error = 6
    retriable = True


class EntryUnknown(LedgerError):
    """Whether the entry exists cannot be said now: time-out, lost connection, or a bookie in limbo."""

    retriable = True


class EntryCorrupt(LedgerError):
    """The stored bytes of an entry fail their checksum or name another entry."""


class DigestConflict(LedgerError):
    """Different bytes are stored under the same ledger and entry id."""


class ForeignLedger(LedgerError):
    """A bookie holds another ledger under this id: one that was created when the metadata was another, before it was
    restored from a backup. It says nothing about the ledger that was asked for."""


class BookieReadOnly(LedgerError):
    """The bookie takes no new entries (disk full or disk failed)."""

    server_error = 6
    retriable = True


class BookieUnavailable(LedgerError):
    """The bookie cannot be reached or is overloaded."""

    server_error = 6
    retriable = True


class RecoveryFailed(LedgerError):
    """The end of a ledger could not be settled with the bookies at hand."""

    server_error = 6
    retriable = True


# ---- Metadata ----


class MetadataError(MagnetarError):
    """The root of the errors of the metadata store."""

    server_error = 1


class BadVersion(MetadataError):
    """Compare-and-set found another version: somebody was faster."""


class KeyExists(BadVersion):
    """The key was to be created and is there already."""


class NoSuchKey(MetadataError):
    """The key is not there."""


class ConditionFailed(MetadataError):
    """Another record, on which the write depends, is no longer as the caller knew it; nothing was executed."""

    server_error = 6
    retriable = True


class MetadataUnavailable(MetadataError):
    """The metadata store cannot be reached; nothing was executed."""

    server_error = 6
    retriable = True


class OutcomeUnknown(MetadataError):
    """The connection broke after the request left: it may have been executed. Read before deciding."""


# ---- Cluster, coordinator, disk, settings ----


class ClusterError(MagnetarError):
    """The cluster cannot be started, found or stopped as asked."""


class SparkUnavailable(MagnetarError):
    """Java, PySpark or RayDP is missing or of a version that does not work; the message says what to install."""


class CoordinatorUnavailable(MagnetarError):
    """No coordinator answers at the moment."""

    server_error = 6
    retriable = True


class StaleEpoch(MagnetarError):
    """The caller acts under an epoch that was superseded."""

    server_error = 6


class DirectoryLocked(MagnetarError):
    """Another live process holds the data directory."""


class CookieMismatch(MagnetarError):
    """The data directory belongs to another cluster or another bookie."""


class DiskFull(MagnetarError):
    """The disk has no room for the write."""

    server_error = 2


class StorageFailed(MagnetarError):
    """The disk refused a write or a sync: what it holds from then on is not to be trusted."""

    server_error = 2


class SettingError(MagnetarError):
    """A setting is unknown or has an impossible value."""


# ---- Internal RPC ----


class RpcError(MagnetarError):
    """The peer failed in a way that has no class here; the message holds what it said."""


class RpcTimeout(RpcError):
    """The peer did not answer in time; the call may have been executed."""

    retriable = True


class RpcDisconnected(RpcError):
    """The connection ended before the answer; the call may have been executed."""

    retriable = True


class HandshakeRefused(RpcError):
    """The peer is of another cluster, another node, or does not know the secret."""

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
    """The error that a broker's answer stands for; `UnknownError` with the number kept for one nobody knows."""
    if 0 <= code < len(SERVER_ERRORS):
        return SERVER_ERRORS[code](message)
    return UnknownError(message, server_error=code)


def is_retriable(error: BaseException) -> bool:
    """Whether the same operation may be tried again after a pause. Errors of sockets and time-outs of the loop may."""
    if isinstance(error, MagnetarError):
        return error.retriable
    return isinstance(error, ConnectionError | TimeoutError)


def error_to_wire(error: BaseException) -> tuple[str, str, dict[str, object]]:
    """Any exception as `(name, message, details)` that msgpack can carry. What is not ours travels as `RpcError`."""
    if isinstance(error, MagnetarError):
        name = type(error).__name__
        if _CLASSES.get(name) is type(error):
            details = {str(key): _plain(value, 0) for key, value in error.details.items()}
            return name, _text(error.message), details
    return "RpcError", _text(f"{type(error).__name__}: {error}"), {}


def error_from_wire(name: object, message: object, details: object) -> MagnetarError:
    """The error that a triple of `error_to_wire` stands for; takes anything, nonsense becomes an `RpcError`."""
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
