"""The class of a consumer's entries: what all of them have in common is said once.

Values are decoded by the consumer's schema, with the definition that each was written with. An entry says the version
of its writer's schema. A consumer on the loop fetches what it lacks before it hands the message out, because
`Message.value` cannot wait there. Other threads fetch it when they ask for the value. A failure to fetch it is what
`value` raises; the payload is there all the same.
"""

from ...protocol.errors import MagnetarError
from ..core.configuration import ConsumerConfiguration
from ..core.context import Core
from ..crypto.decryption import MessageDecryptor
from ..crypto.keys import ConsumerCryptoFailureAction
from ..schemas.key_value import key_bytes
from ..schemas.schema import Schema, SchemaInfo
from .message import Message, ReceivedEntry


class EntryOfSeveral(ReceivedEntry):
    """An entry of a consumer of several topics."""

    __slots__ = ()
    names_topic = True


def entry_kind(core: Core, configuration: ConsumerConfiguration) -> type[ReceivedEntry]:
    """The class of the entries of one consumer."""
    reader, action = configuration.crypto_key_reader, configuration.crypto_failure_action
    if configuration.schema is not None:

        class DecodingEntry(EntryWithSchema):
            """An entry of a consumer with a schema. It may decrypt, too."""

            __slots__ = ()
            names_topic = configuration.takes_several_topics
            crypto = None if reader is None else MessageDecryptor(reader, action)
            reading = SchemaReading(core, configuration.schema)

        return DecodingEntry
    if reader is None and action is ConsumerCryptoFailureAction.FAIL:
        return EntryOfSeveral if configuration.takes_several_topics else ReceivedEntry

    class DecryptingEntry(ReceivedEntry):
        """An entry of a consumer that decrypts, or that does not fail when it cannot."""

        __slots__ = ()
        names_topic = configuration.takes_several_topics
        crypto = MessageDecryptor(reader, action)

    return DecryptingEntry


class EntryWithSchema(ReceivedEntry):
    """An entry of a consumer with a schema."""

    __slots__ = ("writer",)

    writer: SchemaInfo | MagnetarError | None
    """What it was written with, or why that is not known; None until it was asked for."""


class SchemaReading:
    """Finds the definition that an entry was written with."""

    def __init__(self, core: Core, schema: Schema) -> None:
        self._core = core
        self._schema = schema

    def lacks(self, entry: ReceivedEntry) -> bool:
        """Whether the definition that the entry was written with has to be fetched."""
        return self._schema.needs_writer and bool(entry.metadata.schema_version) and self._known(entry) is None

    def _known(self, entry: ReceivedEntry) -> SchemaInfo | MagnetarError | None:
        assert isinstance(entry, EntryWithSchema)
        found = getattr(entry, "writer", None)
        if found is None:
            found = entry.writer = self._core.schemas.known(entry.topic, entry.metadata.schema_version)
        return found

    async def load(self, entry: ReceivedEntry) -> None:
        """Fetch that definition. Never raises: `value` does."""
        assert isinstance(entry, EntryWithSchema)
        try:
            entry.writer = await self._core.schemas.get(entry.topic, entry.metadata.schema_version)
        except MagnetarError as error:
            entry.writer = error

    def _writer(self, entry: ReceivedEntry) -> SchemaInfo | None:
        """What the entry was written with, None if it does not say. Raises why that is not known."""
        if not self._schema.needs_writer or not entry.metadata.schema_version:
            return None
        found = self._known(entry)
        if found is None:
            found = self._core.handover.wait_for(self._core.schemas.get(entry.topic, entry.metadata.schema_version))
        if isinstance(found, MagnetarError):
            raise found
        return found

    def value(self, message: Message) -> object:
        """See `Message.value`."""
        return value_of(message, self._schema, None if message.has_null_value() else self._writer(message.entry))

    def of_pickle(self, entry: ReceivedEntry) -> "WrittenWith":
        """What decodes it in another process."""
        try:
            return WrittenWith(self._schema, self._writer(entry))
        except MagnetarError as error:
            return WrittenWith(self._schema, error)


class WrittenWith:
    """Decodes the messages of one entry that came out of a pickle."""

    def __init__(self, schema: Schema, writer: SchemaInfo | MagnetarError | None) -> None:
        self._schema = schema
        self._writer = writer

    def lacks(self, entry: ReceivedEntry) -> bool:
        """Nothing: it travelled with the entry."""
        return False

    async def load(self, entry: ReceivedEntry) -> None:
        """Nothing: it travelled with the entry."""

    def value(self, message: Message) -> object:
        """See `Message.value`."""
        if isinstance(self._writer, MagnetarError):
            raise self._writer
        return value_of(message, self._schema, self._writer)

    def of_pickle(self, entry: ReceivedEntry) -> "WrittenWith":
        """What decodes it in another process."""
        return self


def value_of(message: Message, schema: Schema, writer: SchemaInfo | None) -> object:
    """The value of a message. Raises SchemaSerializationError."""
    if message.has_null_value():
        return None
    if message.entry.undecrypted:
        return message.data()
    if not (schema.separates_key or schema.learns):
        return schema.decode(message.data(), writer)
    single = message[3]
    key = key_bytes(single.partition_key) if single is not None and single.partition_key_b64_encoded else None
    return schema.decode_with_key(key, message.data(), writer)
