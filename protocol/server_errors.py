"""The root of all errors, and one error class per number of Pulsar's `ServerError`, which a broker can answer.

Import them from `errors`, which holds the rest and says how errors travel.
"""

from typing import ClassVar, cast


class MagnetarError(Exception):
    """The root of all errors of Magnetar.

    `message` is for people; `details` are plain values (numbers, strings, bytes, lists, dictionaries) for programs.

    What to do: Catch it to catch every error of Magnetar; read the class and the message of the one that came.
    """

    server_error: ClassVar[int] = 0
    retriable: ClassVar[bool] = False

    details: dict[str, object]

    def __init__(self, message: str = "", /, **details: object) -> None:
        super().__init__(message)
        self.details = details

    @property
    def message(self) -> str:
        """The text for people; empty if none was given."""
        return cast(str, self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message or type(self).__name__


class UnknownError(MagnetarError):
    """The peer failed with an error that has no number of its own.

    What to do: Read the message, and the broker's log for the same time.
    """

    server_error = 0
    retriable = True


class BrokerMetadataError(MagnetarError):
    """The broker could not read or write its metadata.

    What to do: Nothing: clients try again. If it lasts, check that the coordinator answers (`magnetar status`).
    """

    server_error = 1
    retriable = True


class BrokerPersistenceError(MagnetarError):
    """The broker could not store or read messages.

    What to do: Check with `magnetar status` that enough bookies are alive and that no disk is full.
    """

    server_error = 2
    retriable = True


class AuthenticationError(MagnetarError):
    """The peer refused the credentials.

    What to do: Give the process the credentials of this cluster.
    """

    server_error = 3


class AuthorizationError(MagnetarError):
    """The peer accepted the credentials, but they do not permit the call.

    What to do: Ask the operator for the permission, or use a call that your role permits.
    """

    server_error = 4


class ConsumerBusy(MagnetarError):
    """The subscription already has a consumer and admits no second one.

    What to do: Close the other consumer, subscribe under another name, or use ConsumerType.Shared on both.
    """

    server_error = 5


class ServiceUnitNotReady(MagnetarError):
    """The topic is being loaded or moved, or cannot be stored at the moment (ServiceNotReady).

    What to do: Nothing: clients try again until their time-out. If it lasts, run `magnetar status`.
    """

    server_error = 6
    retriable = True


class ProducerBlockedQuotaExceededError(MagnetarError):
    """The backlog quota is used up, and the broker holds the producer's messages back.

    What to do: Consume the backlog, or raise the quota. Clients try again by themselves until their time-out.
    """

    server_error = 7
    retriable = True


class ProducerBlockedQuotaExceededException(MagnetarError):
    """The backlog quota is used up, and the broker refused the producer.

    What to do: Consume the backlog, or raise the quota, then create the producer again.
    """

    server_error = 8


class ChecksumError(MagnetarError):
    """The CRC32C of an entry does not match its bytes.

    What to do: Send the message again. If it recurs, check the network and the memory of the machine.
    """

    server_error = 9


class UnsupportedVersionError(MagnetarError):
    """The peer's protocol version lacks the requested feature.

    What to do: Upgrade the client or the broker, whichever is older.
    """

    server_error = 10


class TopicNotFound(MagnetarError):
    """The topic does not exist, and it may not be created.

    What to do: Check the name, create the topic, or set `allowAutoTopicCreation=true`.
    """

    server_error = 11


class SubscriptionNotFound(MagnetarError):
    """The subscription does not exist, and it may not be created.

    What to do: Check the name, create the subscription, or set `allowAutoSubscriptionCreation=true`.
    """

    server_error = 12


class ConsumerNotFound(MagnetarError):
    """The connection has no consumer with that id.

    What to do: Subscribe again.
    """

    server_error = 13


class TooManyLookupRequestException(MagnetarError):
    """Too many requests are in flight (TooManyRequests).

    What to do: Wait and try again with fewer requests at a time, or raise `maxConcurrentLookupRequest`.
    """

    server_error = 14
    retriable = True


class TopicTerminated(MagnetarError):
    """The topic was terminated: it can be read, but not written.

    What to do: Publish to another topic.
    """

    server_error = 15


class ProducerBusy(MagnetarError):
    """Another producer with that name is connected.

    What to do: Close the other producer, choose another `producer_name`, or leave it out.
    """

    server_error = 16


class InvalidTopicName(MagnetarError, ValueError):
    """The text is not a topic name.

    What to do: Write `topic` or `persistent://tenant/namespace/topic`.
    """

    server_error = 17


class IncompatibleSchema(MagnetarError):
    """The schema is incompatible with the topic's schemas.

    What to do: Use a schema that goes with the topic's, as the message says. Or change `schemaCompatibilityStrategy` of
        the namespace. A schema that is malformed is refused with this error, too.
    """

    server_error = 18


class ConsumerAssignError(MagnetarError):
    """The dispatcher could not place the consumer (for example overlapping sticky ranges).

    What to do: Subscribe with ranges of hashes that do not overlap.
    """

    server_error = 19


class TransactionCoordinatorNotFoundError(MagnetarError):
    """No transaction coordinator with that id exists here.

    What to do: Transactions are not supported here. Another Pulsar: enable them.
    """

    server_error = 20


class InvalidTxnStatusError(MagnetarError):
    """The transaction's state does not permit the request.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """

    server_error = 21


class NotAllowedError(MagnetarError):
    """The request is forbidden in this state or by a policy.

    What to do: Leave out the option or call that the message names.
    """

    server_error = 22


class TransactionConflict(MagnetarError):
    """Another transaction acknowledged the same message.

    What to do: Transactions are not supported here. Another Pulsar: abort and try again.
    """

    server_error = 23


class TransactionNotFound(MagnetarError):
    """No transaction with that id is known.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """

    server_error = 24


class ProducerFenced(MagnetarError):
    """A newer producer took the topic over, so this producer must stop.

    What to do: Close this producer. Create a new one only if this process must take the topic over again.
    """

    server_error = 25


# Indexed by number.
SERVER_ERRORS: tuple[type[MagnetarError], ...] = (
    UnknownError,
    BrokerMetadataError,
    BrokerPersistenceError,
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    ServiceUnitNotReady,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ChecksumError,
    UnsupportedVersionError,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TooManyLookupRequestException,
    TopicTerminated,
    ProducerBusy,
    InvalidTopicName,
    IncompatibleSchema,
    ConsumerAssignError,
    TransactionCoordinatorNotFoundError,
    InvalidTxnStatusError,
    NotAllowedError,
    TransactionConflict,
    TransactionNotFound,
    ProducerFenced,
)
