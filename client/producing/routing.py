"""Which partition a message goes to.

Keyless messages of a round-robin producer stay on one partition until its batch is full or the batching delay has
passed. The official C++ and Python clients do the same. Without batching, every message goes to the next partition. A
key always decides by its hash, a custom router decides alone.
"""

from collections.abc import Callable
from typing import Protocol

from ...protocol.errors import InvalidMessage
from ...protocol.hashing import java_string_hash, murmur3_32
from ...runtime.environment import Chance
from ..core.configuration import HashingScheme, PartitionsRoutingMode, ProducerConfiguration
from ..core.outgoing_message import OutgoingMessage


class Router(Protocol):
    """Chooses partitions for one producer. `turn` is called at every batching-delay boundary."""

    current: int
    """Partition of keyless messages at this moment; −1 if every message has to be asked for."""

    def choose(self, message: OutgoingMessage) -> int: ...
    def turn(self) -> None: ...
    def grow(self, partitions: int) -> None:
        """There are more partitions."""
        ...

    def turn_from(self, partition: int) -> None:
        """The batch of a partition is full, or it has no room: go on with the next one if it is this one's turn."""
        ...


def hash_function(scheme: HashingScheme) -> Callable[[str], int]:
    """The hash of a key, non-negative, as Java's clients compute it."""
    if scheme is HashingScheme.Murmur3_32Hash:
        return lambda key: murmur3_32(key.encode()) & 0x7FFFFFFF
    return java_string_hash


class RoundRobin:
    """Partitions in turn for keyless messages, from a random start; without batching `every_message` turns."""

    def __init__(self, random: Chance, partitions: int, hash_of: Callable[[str], int], every_message: bool) -> None:
        self._partitions = partitions
        self._hash = hash_of
        self._next = random.randrange(partitions)
        self._every_message = every_message
        self.current = -1 if every_message else self._next

    def choose(self, message: OutgoingMessage) -> int:
        key = message.partition_key()
        if key:
            return self._hash(key) % self._partitions
        if self._every_message:
            chosen = self._next
            self._next = (chosen + 1) % self._partitions
            return chosen
        return self.current

    def grow(self, partitions: int) -> None:
        self._partitions = partitions

    def turn(self) -> None:
        if not self._every_message:
            self.current = (self.current + 1) % self._partitions

    def turn_from(self, partition: int) -> None:
        if self.current == partition:
            self.turn()


class SinglePartition:
    """One partition, drawn at random when the producer is made, for all its keyless messages."""

    def __init__(self, random: Chance, partitions: int, hash_of: Callable[[str], int]) -> None:
        self._partitions = partitions
        self._hash = hash_of
        self.current = random.randrange(partitions)

    def choose(self, message: OutgoingMessage) -> int:
        key = message.partition_key()
        return self._hash(key) % self._partitions if key else self.current

    def grow(self, partitions: int) -> None:
        self._partitions = partitions

    def turn(self) -> None:
        """Nothing turns."""

    def turn_from(self, partition: int) -> None:
        """Nothing turns."""


class Custom:
    """The application's own function of message and number of partitions."""

    current = -1

    def __init__(self, partitions: int, route: Callable[[OutgoingMessage, int], int]) -> None:
        self._partitions = partitions
        self._route = route

    def choose(self, message: OutgoingMessage) -> int:
        chosen = int(self._route(message, self._partitions))
        if not 0 <= chosen < self._partitions:
            raise InvalidMessage(
                f"the message router returned partition {chosen} of {self._partitions}, which does not exist"
            )
        return chosen

    def grow(self, partitions: int) -> None:
        self._partitions = partitions

    def turn(self) -> None:
        """Nothing turns."""

    def turn_from(self, partition: int) -> None:
        """Nothing turns."""


def make_router(configuration: ProducerConfiguration, random: Chance, partitions: int) -> Router:
    """The router that `configuration` asks for. A `message_router` is used whatever the mode says."""
    if configuration.message_router is not None:
        return Custom(partitions, configuration.message_router)
    hash_of = hash_function(configuration.hashing_scheme)
    if configuration.message_routing_mode is PartitionsRoutingMode.UseSinglePartition:
        return SinglePartition(random, partitions, hash_of)
    return RoundRobin(random, partitions, hash_of, every_message=not configuration.batching_enabled)
