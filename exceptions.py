"""The errors under the official client's name for their module: `magnetar.exceptions` is `pulsar.exceptions`."""

from .protocol.errors import AlreadyClosed as AlreadyClosed
from .protocol.errors import AuthenticationError as AuthenticationError
from .protocol.errors import AuthorizationError as AuthorizationError
from .protocol.errors import BrokerMetadataError as BrokerMetadataError
from .protocol.errors import BrokerPersistenceError as BrokerPersistenceError
from .protocol.errors import ChecksumError as ChecksumError
from .protocol.errors import ConnectError as ConnectError
from .protocol.errors import ConsumerAssignError as ConsumerAssignError
from .protocol.errors import ConsumerBusy as ConsumerBusy
from .protocol.errors import ConsumerNotFound as ConsumerNotFound
from .protocol.errors import ConsumerNotInitialized as ConsumerNotInitialized
from .protocol.errors import CryptoError as CryptoError
from .protocol.errors import CumulativeAcknowledgementNotAllowedError as CumulativeAcknowledgementNotAllowedError
from .protocol.errors import ErrorGettingAuthenticationData as ErrorGettingAuthenticationData
from .protocol.errors import IncompatibleSchema as IncompatibleSchema
from .protocol.errors import Interrupted as Interrupted
from .protocol.errors import InvalidConfiguration as InvalidConfiguration
from .protocol.errors import InvalidMessage as InvalidMessage
from .protocol.errors import InvalidTopicName as InvalidTopicName
from .protocol.errors import InvalidTxnStatusError as InvalidTxnStatusError
from .protocol.errors import InvalidUrl as InvalidUrl
from .protocol.errors import LookupError as LookupError
from .protocol.errors import MagnetarError as PulsarException
from .protocol.errors import MemoryBufferIsFull as MemoryBufferIsFull
from .protocol.errors import MessageTooBig as MessageTooBig
from .protocol.errors import NotAllowedError as NotAllowedError
from .protocol.errors import NotConnected as NotConnected
from .protocol.errors import OperationNotSupported as OperationNotSupported
from .protocol.errors import ProducerBlockedQuotaExceededError as ProducerBlockedQuotaExceededError
from .protocol.errors import ProducerBlockedQuotaExceededException as ProducerBlockedQuotaExceededException
from .protocol.errors import ProducerBusy as ProducerBusy
from .protocol.errors import ProducerFenced as ProducerFenced
from .protocol.errors import ProducerNotInitialized as ProducerNotInitialized
from .protocol.errors import ProducerQueueIsFull as ProducerQueueIsFull
from .protocol.errors import ReadError as ReadError
from .protocol.errors import ServiceUnitNotReady as ServiceUnitNotReady
from .protocol.errors import SubscriptionNotFound as SubscriptionNotFound
from .protocol.errors import Timeout as Timeout
from .protocol.errors import TooManyLookupRequestException as TooManyLookupRequestException
from .protocol.errors import TopicNotFound as TopicNotFound
from .protocol.errors import TopicTerminated as TopicTerminated
from .protocol.errors import TransactionConflict as TransactionConflict
from .protocol.errors import TransactionCoordinatorNotFoundError as TransactionCoordinatorNotFoundError
from .protocol.errors import TransactionNotFound as TransactionNotFound
from .protocol.errors import UnknownError as UnknownError
from .protocol.errors import UnsupportedVersionError as UnsupportedVersionError

__all__ = [
    "AlreadyClosed",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerMetadataError",
    "BrokerPersistenceError",
    "ChecksumError",
    "ConnectError",
    "ConsumerAssignError",
    "ConsumerBusy",
    "ConsumerNotFound",
    "ConsumerNotInitialized",
    "CryptoError",
    "CumulativeAcknowledgementNotAllowedError",
    "ErrorGettingAuthenticationData",
    "IncompatibleSchema",
    "Interrupted",
    "InvalidConfiguration",
    "InvalidMessage",
    "InvalidTopicName",
    "InvalidTxnStatusError",
    "InvalidUrl",
    "LookupError",
    "MemoryBufferIsFull",
    "MessageTooBig",
    "NotAllowedError",
    "NotConnected",
    "OperationNotSupported",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerFenced",
    "ProducerNotInitialized",
    "ProducerQueueIsFull",
    "PulsarException",
    "ReadError",
    "ServiceUnitNotReady",
    "SubscriptionNotFound",
    "Timeout",
    "TooManyLookupRequestException",
    "TopicNotFound",
    "TopicTerminated",
    "TransactionConflict",
    "TransactionCoordinatorNotFoundError",
    "TransactionNotFound",
    "UnknownError",
    "UnsupportedVersionError",
]
