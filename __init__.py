"""Magnetar: Apache Pulsar's messaging system built on Ray.

Brokers, bookies and the metadata coordinator are Ray actors. Topics are stored in replicated ledgers. Clients speak
Pulsar's own binary protocol, so both the client below and every official Pulsar client work. `magnetar.spark` reads
partitions in bulk into Spark DataFrames.

    import magnetar

    cluster = magnetar.start()                  # or magnetar.connect(), or `magnetar start --detach` in a shell
    client = magnetar.Client()                  # finds the cluster through Ray; takes a URL of any Pulsar too
    client.create_producer("greetings").send(b"hello")

Everything is loaded on first use: importing the package is instant and brings in neither Ray nor Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import data as data
    from . import exceptions as exceptions
    from . import functions as functions
    from . import schema as schema
    from . import serve as serve
    from . import spark as spark
    from . import tableview as tableview
    from .bulk.local_read import arrow_batches as arrow_batches  # pyright: ignore[reportUnknownVariableType]
    from .bulk.local_read import to_arrow as to_arrow  # pyright: ignore[reportUnknownVariableType] (pyarrow has none)
    from .bulk.local_read import to_pandas as to_pandas
    from .client.aio.client import AsyncClient as AsyncClient
    from .client.aio.consumer import AsyncConsumer as AsyncConsumer
    from .client.aio.producer import AsyncProducer as AsyncProducer
    from .client.aio.reader import AsyncReader as AsyncReader
    from .client.aio.table_view import AsyncTableView as AsyncTableView
    from .client.blocking.client import Client as Client
    from .client.blocking.consumer import Consumer as Consumer
    from .client.blocking.producer import Producer as Producer
    from .client.blocking.reader import Reader as Reader
    from .client.blocking.table_view import TableView as TableView
    from .client.consuming.message import Message as Message
    from .client.core.authentication import Authentication as Authentication
    from .client.core.authentication import AuthenticationBasic as AuthenticationBasic
    from .client.core.authentication import AuthenticationTLS as AuthenticationTLS
    from .client.core.authentication import AuthenticationToken as AuthenticationToken
    from .client.core.configuration import BatchingType as BatchingType
    from .client.core.configuration import ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy
    from .client.core.configuration import ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy
    from .client.core.configuration import ConsumerType as ConsumerType
    from .client.core.configuration import DeadLetterProducerContext as DeadLetterProducerContext
    from .client.core.configuration import HashingScheme as HashingScheme
    from .client.core.configuration import InitialPosition as InitialPosition
    from .client.core.configuration import PartitionsRoutingMode as PartitionsRoutingMode
    from .client.core.configuration import ProducerAccessMode as ProducerAccessMode
    from .client.core.configuration import RegexSubscriptionMode as RegexSubscriptionMode
    from .client.core.configuration import SubscriptionMode as SubscriptionMode
    from .client.core.failover_events import ConsumerEventListener as ConsumerEventListener
    from .client.core.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from .client.core.interceptors import ProducerInterceptor as ProducerInterceptor
    from .client.core.key_shared_policy import ConsumerKeySharedPolicy as ConsumerKeySharedPolicy
    from .client.core.key_shared_policy import KeySharedMode as KeySharedMode
    from .client.core.message_id import MessageId as MessageId
    from .client.core.message_id import TopicMessageId as TopicMessageId
    from .client.core.redelivery_backoff import MultiplierRedeliveryBackoff as MultiplierRedeliveryBackoff
    from .client.core.results import Result as Result
    from .client.crypto.context import EncryptionContext as EncryptionContext
    from .client.crypto.context import EncryptionKey as EncryptionKey
    from .client.crypto.keys import ConsumerCryptoFailureAction as ConsumerCryptoFailureAction
    from .client.crypto.keys import CryptoKeyReader as CryptoKeyReader
    from .client.crypto.keys import EncryptionKeyInfo as EncryptionKeyInfo
    from .client.crypto.keys import ProducerCryptoFailureAction as ProducerCryptoFailureAction
    from .client.schemas.automatic import AutoConsumeSchema as AutoConsumeSchema
    from .client.schemas.automatic import AutoProduceBytesSchema as AutoProduceBytesSchema
    from .client.schemas.avro_schema import AvroSchema as AvroSchema
    from .client.schemas.json_schema import JsonSchema as JsonSchema
    from .client.schemas.key_value import KeyValue as KeyValue
    from .client.schemas.key_value import KeyValueEncodingType as KeyValueEncodingType
    from .client.schemas.key_value import KeyValueSchema as KeyValueSchema
    from .client.schemas.primitives import BooleanSchema as BooleanSchema
    from .client.schemas.primitives import BytesSchema as BytesSchema
    from .client.schemas.primitives import DateSchema as DateSchema
    from .client.schemas.primitives import DoubleSchema as DoubleSchema
    from .client.schemas.primitives import FloatSchema as FloatSchema
    from .client.schemas.primitives import InstantSchema as InstantSchema
    from .client.schemas.primitives import Int8Schema as Int8Schema
    from .client.schemas.primitives import Int16Schema as Int16Schema
    from .client.schemas.primitives import Int32Schema as Int32Schema
    from .client.schemas.primitives import Int64Schema as Int64Schema
    from .client.schemas.primitives import LocalDateSchema as LocalDateSchema
    from .client.schemas.primitives import LocalDateTimeSchema as LocalDateTimeSchema
    from .client.schemas.primitives import LocalTimeSchema as LocalTimeSchema
    from .client.schemas.primitives import StringSchema as StringSchema
    from .client.schemas.primitives import TimeSchema as TimeSchema
    from .client.schemas.primitives import TimestampSchema as TimestampSchema
    from .client.schemas.protobuf_schema import ProtobufNativeSchema as ProtobufNativeSchema
    from .client.schemas.schema import Schema as Schema
    from .client.statistics.figures import ConsumerStats as ConsumerStats
    from .client.statistics.figures import ProducerStats as ProducerStats
    from .cluster.handle import Cluster as Cluster
    from .cluster.starting import connect as connect
    from .cluster.starting import start as start
    from .exceptions import *  # noqa: F403 (the errors of the official client)
    from .protocol.compression import CompressionType as CompressionType
    from .protocol.errors import ClusterError as ClusterError
    from .protocol.errors import ConnectionClosed as ConnectionClosed
    from .protocol.errors import ConsumeFailed as ConsumeFailed
    from .protocol.errors import DirectoryLocked as DirectoryLocked
    from .protocol.errors import FollowFailed as FollowFailed
    from .protocol.errors import MagnetarError as MagnetarError
    from .protocol.errors import SchemaSerializationError as SchemaSerializationError
    from .protocol.errors import SettingError as SettingError
    from .protocol.errors import SparkUnavailable as SparkUnavailable
    from .tasks.consume import Consuming as Consuming
    from .tasks.consume import consume as consume
    from .tasks.consume_pool import ConsumeStats as ConsumeStats
    from .tasks.queue import Empty as Empty
    from .tasks.queue import Full as Full
    from .tasks.queue import Queue as Queue


_HOMES: dict[str, tuple[str, ...]] = {
    "bulk.local_read": ("arrow_batches", "to_arrow", "to_pandas"),
    "client.aio.consumer": ("AsyncConsumer",),
    "client.aio.producer": ("AsyncProducer",),
    "client.blocking.client": ("Client",),
    "client.blocking.consumer": ("Consumer",),
    "client.blocking.producer": ("Producer",),
    "client.blocking.reader": ("Reader",),
    "client.blocking.table_view": ("TableView",),
    "client.aio.table_view": ("AsyncTableView",),
    "client.core.interceptors": ("ConsumerInterceptor", "ProducerInterceptor"),
    "client.aio.client": ("AsyncClient",),
    "client.crypto.context": ("EncryptionContext", "EncryptionKey"),
    "client.crypto.keys": (
        "ConsumerCryptoFailureAction",
        "CryptoKeyReader",
        "EncryptionKeyInfo",
        "ProducerCryptoFailureAction",
    ),
    "client.core.configuration": (
        "BatchingType",
        "ConsumerBatchReceivePolicy",
        "ConsumerDeadLetterPolicy",
        "ConsumerType",
        "DeadLetterProducerContext",
        "HashingScheme",
        "InitialPosition",
        "PartitionsRoutingMode",
        "ProducerAccessMode",
        "RegexSubscriptionMode",
        "SubscriptionMode",
    ),
    "client.core.failover_events": ("ConsumerEventListener",),
    "client.core.key_shared_policy": ("ConsumerKeySharedPolicy", "KeySharedMode"),
    "client.consuming.message": ("Message",),
    "client.core.redelivery_backoff": ("MultiplierRedeliveryBackoff",),
    "client.core.message_id": ("MessageId", "TopicMessageId"),
    "client.aio.reader": ("AsyncReader",),
    "client.core.results": ("Result",),
    "client.schemas.automatic": ("AutoConsumeSchema", "AutoProduceBytesSchema"),
    "client.schemas.avro_schema": ("AvroSchema",),
    "client.schemas.json_schema": ("JsonSchema",),
    "client.schemas.key_value": ("KeyValue", "KeyValueEncodingType", "KeyValueSchema"),
    "client.schemas.primitives": (
        "BooleanSchema",
        "BytesSchema",
        "DateSchema",
        "DoubleSchema",
        "FloatSchema",
        "InstantSchema",
        "Int8Schema",
        "Int16Schema",
        "Int32Schema",
        "Int64Schema",
        "LocalDateSchema",
        "LocalDateTimeSchema",
        "LocalTimeSchema",
        "StringSchema",
        "TimeSchema",
        "TimestampSchema",
    ),
    "client.core.authentication": (
        "Authentication",
        "AuthenticationBasic",
        "AuthenticationTLS",
        "AuthenticationToken",
    ),
    "client.schemas.protobuf_schema": ("ProtobufNativeSchema",),
    "client.schemas.schema": ("Schema",),
    "client.statistics.figures": ("ConsumerStats", "ProducerStats"),
    "cluster.handle": ("Cluster",),
    "cluster.starting": ("connect", "start"),
    "tasks.consume": ("Consuming", "consume"),
    "tasks.consume_pool": ("ConsumeStats",),
    "tasks.queue": ("Empty", "Full", "Queue"),
    "protocol.compression": ("CompressionType",),
    "protocol.errors": (
        "AlreadyClosed",
        "AuthenticationError",
        "AuthorizationError",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ChecksumError",
        "ClusterError",
        "ConnectError",
        "ConnectionClosed",
        "ConsumeFailed",
        "ConsumerAssignError",
        "ConsumerBusy",
        "ConsumerNotFound",
        "ConsumerNotInitialized",
        "CryptoError",
        "CumulativeAcknowledgementNotAllowedError",
        "DirectoryLocked",
        "ErrorGettingAuthenticationData",
        "FollowFailed",
        "IncompatibleSchema",
        "Interrupted",
        "InvalidConfiguration",
        "InvalidMessage",
        "InvalidTopicName",
        "InvalidTxnStatusError",
        "InvalidUrl",
        "LookupError",
        "MagnetarError",
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
        "ReadError",
        "SchemaSerializationError",
        "ServiceUnitNotReady",
        "SettingError",
        "SparkUnavailable",
        "SubscriptionNotFound",
        "Timeout",
        "TooManyLookupRequestException",
        "TlsError",
        "TopicNotFound",
        "TopicTerminated",
        "TransactionConflict",
        "TransactionCoordinatorNotFoundError",
        "TransactionNotFound",
        "UnknownError",
        "UnsupportedVersionError",
    ),
}
_MODULES = ("data", "exceptions", "functions", "schema", "serve", "spark", "tableview")
_ALIASES = {"PulsarException": "MagnetarError"}
"""The official client's name for the root of all errors."""

_ABSENT = (
    "AuthenticationAthenz",
    "AuthenticationOauth2",
    "AutoClusterFailover",
    "BatchReceivePolicy",
    "ConsoleLogger",
    "Context",
    "DeadLetterPolicyBuilder",
    "FileLogger",
    "Function",
    "IdentitySerDe",
    "KeySharedPolicy",
    "LoggerLevel",
    "MessageBatch",
    "PickleSerDe",
    "SerDe",
    "ServiceInfo",
    "ServiceInfoProvider",
)
"""Names of the official client whose features do not exist here; see `client.core.absent`."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES, *_ALIASES, *_ABSENT])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    wanted = _ALIASES.get(name, name)
    if wanted in _HOME_OF:
        value = getattr(import_module(f".{_HOME_OF[wanted]}", __name__), wanted)
    elif wanted == "__version__":
        value = import_module(".protocol.names", __name__).VERSION
    elif wanted in _ABSENT:
        value = import_module(".client.core.absent", __name__).absent(wanted)
    elif wanted in _MODULES:
        value = import_module(f".{wanted}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
