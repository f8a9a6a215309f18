"""The class of a consumer's entries: what all of them have in common is said once."""

from ..core.configuration import ConsumerConfiguration
from ..crypto.decryption import MessageDecryptor
from ..crypto.keys import ConsumerCryptoFailureAction
from .message import ReceivedEntry


class EntryOfSeveral(ReceivedEntry):
    """An entry of a consumer of several topics."""

    __slots__ = ()
    names_topic = True


def entry_kind(configuration: ConsumerConfiguration) -> type[ReceivedEntry]:
    """The class of the entries of one consumer."""
    reader, action = configuration.crypto_key_reader, configuration.crypto_failure_action
    if reader is None and action is ConsumerCryptoFailureAction.FAIL:
        return EntryOfSeveral if configuration.takes_several_topics else ReceivedEntry

    class DecryptingEntry(ReceivedEntry):
        """An entry of a consumer that decrypts, or that does not fail when it cannot."""

        __slots__ = ()
        names_topic = configuration.takes_several_topics
        crypto = MessageDecryptor(reader, action)

    return DecryptingEntry
