"""Producers, consumers and readers in pickles: they travel as client and configuration, and open when first used.

Not while they are unpickled: Ray unpickles a task's arguments where nothing may wait for Ray, and finding the cluster
does. The first use of what is not there yet opens them.
"""

import threading
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ..core.configuration import ConsumerConfiguration, ProducerConfiguration, ReaderConfiguration
from ..core.forking import watch

if TYPE_CHECKING:
    from .client import Client

Configuration = TypeVar("Configuration", ProducerConfiguration, ConsumerConfiguration, ReaderConfiguration)


class OpensLater(Generic[Configuration]):
    """What a face inherits to travel like that. It sets `_client` and `_configuration` when it is opened."""

    _SET_BY_OPENING: ClassVar[frozenset[str]]
    """Attributes whose absence means that it has to be opened."""

    _client: "Client"
    _configuration: Configuration

    def __reduce__(self) -> tuple[object, ...]:
        return (_unopened, (type(self), self._client, self._configuration))

    def __getattr__(self, name: str) -> object:
        lock = self.__dict__.get("_opening")
        if lock is None or name not in self._SET_BY_OPENING:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with lock:
            if "_opening" in self.__dict__:
                self._open()
                del self.__dict__["_opening"]
        return object.__getattribute__(self, name)

    @property
    def is_unopened(self) -> bool:
        """Whether it came out of a pickle and was not used yet."""
        return "_opening" in self.__dict__

    def inherited(self) -> None:
        """Note that the process has forked: the thread that was opening it is not in the child. See `forking`."""
        if self.is_unopened:
            self.__dict__["_opening"] = threading.RLock()

    def _open(self) -> None:
        """Open as `_configuration` says, and initialize. Raises as the client's method that makes such a face."""
        raise NotImplementedError


def _unopened(
    kind: type[OpensLater[Configuration]], client: "Client", configuration: Configuration
) -> OpensLater[Configuration]:
    made = kind.__new__(kind)
    made.__dict__.update(_client=client, _configuration=configuration, _opening=threading.RLock())
    watch(made)
    return made
