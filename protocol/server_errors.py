"""The root of all errors, and the errors a broker can answer with: one class for each number of Pulsar's `ServerError`.

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
    """The peer failed in a way that has no number of its own.

    What to do: Read the message; look into the broker's log for the same time.
    """

    server_error = 0
    retriable = True


class BrokerMetadataError(MagnetarError):
    """The broker could not read or write its metadata.

    What to do: Nothing if it passes: clients try again. Otherwise check that the coordinator answers (`magnetar
    status`).
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
    """The peer does not believe who we are.

    What to do: Give the process the credentials of this cluster.
    """

    server_error = 3


class AuthorizationError(MagnetarError):
    """The peer knows who we are and says no.

    What to do: Ask for the permission, or use a call that your role may make.
    """

    server_error = 4


class ConsumerBusy(MagnetarError):
    """The subscription has a consumer already and admits no other.

    What to do: Close the other consumer, subscribe under another name, or use ConsumerType.Shared on both.
    """

    server_error = 5


class ServiceUnitNotReady(MagnetarError):
    """The topic is being loaded, moved or cannot be stored at the moment (ServiceNotReady).

    What to do: Nothing: clients try again until their time-out. If it lasts, look at `magnetar status`.
    """

    server_error = 6
    retriable = True


class ProducerBlockedQuotaExceededError(MagnetarError):
    """The backlog quota is used up; the producer was told to hold back.

    What to do: Nothing here raises it yet. Another Pulsar: consume the backlog or raise its quota.
    """

    server_error = 7


class ProducerBlockedQuotaExceededException(MagnetarError):
    """The backlog quota is used up; the producer was refused.

    What to do: Nothing here raises it yet. Another Pulsar: consume the backlog or raise its quota.
    """

    server_error = 8


class ChecksumError(MagnetarError):
    """The CRC32C of an entry does not match its bytes.

    What to do: Send the message again. If it recurs, check the network and the memory of the machine.
    """

    server_error = 9


class UnsupportedVersionError(MagnetarError):
    """The peer's protocol version lacks what was asked for.

    What to do: Upgrade the older of client and broker.
    """

    server_error = 10


class TopicNotFound(MagnetarError):
    """There is no such topic, and it was not to be created.

    What to do: Check the name, create the topic, or set `allowAutoTopicCreation=true`.
    """

    server_error = 11


class SubscriptionNotFound(MagnetarError):
    """There is no such subscription, and it was not to be created.

    What to do: Check the name, create the subscription, or set `allowAutoSubscriptionCreation=true`.
    """

    server_error = 12


class ConsumerNotFound(MagnetarError):
    """The connection has no consumer of that id.

    What to do: Subscribe again.
    """

    server_error = 13


class TooManyLookupRequestException(MagnetarError):
    """Too many requests are under way (TooManyRequests).

    What to do: Wait and try again, with fewer requests at a time; or raise `maxConcurrentLookupRequest`.
    """

    server_error = 14
    retriable = True


class TopicTerminated(MagnetarError):
    """The topic was ended for good: it can be read, not written.

    What to do: Publish to another topic.
    """

    server_error = 15


class ProducerBusy(MagnetarError):
    """Another producer of that name is connected.

    What to do: Close the other producer, or choose another `producer_name`, or none.
    """

    server_error = 16


class InvalidTopicName(MagnetarError):
    """The text is no topic name.

    What to do: Write `topic` or `persistent://tenant/namespace/topic`.
    """

    server_error = 17


class IncompatibleSchema(MagnetarError):
    """The schema does not agree with those the topic has.

    What to do: Nothing here raises it yet. Another Pulsar: use a schema that is compatible with the topic's.
    """

    server_error = 18


class ConsumerAssignError(MagnetarError):
    """The dispatcher could not place the consumer (for example overlapping sticky ranges).

    What to do: Subscribe with ranges of hashes that do not overlap.
    """

    server_error = 19


class TransactionCoordinatorNotFoundError(MagnetarError):
    """No transaction coordinator of that id is here.

    What to do: Transactions are not supported here. Another Pulsar: enable them.
    """

    server_error = 20


class InvalidTxnStatusError(MagnetarError):
    """The transaction is in another state than the request needs.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """

    server_error = 21


class NotAllowedError(MagnetarError):
    """The request is understood and forbidden in this state or by policy.

    What to do: Read the message: it names what is forbidden. Leave that option or call out.
    """

    server_error = 22


class TransactionConflict(MagnetarError):
    """Another transaction acknowledged the same message.

    What to do: Transactions are not supported here. Another Pulsar: abort and try again.
    """

    server_error = 23


class TransactionNotFound(MagnetarError):
    """No transaction of that id is known.

    What to do: Transactions are not supported here. Another Pulsar: begin a new transaction.
    """

    server_error = 24


class ProducerFenced(MagnetarError):
    """A newer producer took the topic over; this one must not come back.

    What to do: Close this producer. Create a new one only if this process shall take the topic over again.
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
