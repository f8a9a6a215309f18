"""How long a message waits for its redelivery, by how often it was delivered before."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ...protocol.errors import InvalidConfiguration


@runtime_checkable
class RedeliveryBackoff(Protocol):
    """What `negative_ack_redelivery_backoff` and `ack_timeout_redelivery_backoff` may be."""

    def next(self, redelivery_count: int) -> float:
        """Milliseconds to wait, for a message that was delivered again so often before."""
        ...


@dataclass(frozen=True)
class MultiplierRedeliveryBackoff:
    """A delay that grows by a factor with each redelivery, up to a maximum. Names and defaults are the Java client's.

    With 1000, 60000 and 2 a message comes again after 1, 2, 4, 8, 16, 32, 60, 60 … seconds.
    """

    min_delay_ms: int = 10_000
    max_delay_ms: int = 600_000
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.min_delay_ms < 0:
            raise InvalidConfiguration(f"min_delay_ms must be at least 0, not {self.min_delay_ms!r}")
        if self.max_delay_ms < self.min_delay_ms:
            raise InvalidConfiguration(
                f"max_delay_ms must be at least min_delay_ms, which is {self.min_delay_ms}, not {self.max_delay_ms!r}"
            )
        if not self.multiplier > 1:
            raise InvalidConfiguration(f"multiplier must be greater than 1, not {self.multiplier!r}")

    def next(self, redelivery_count: int) -> float:
        """Return the delay.

        Args:
            redelivery_count: How often the message was delivered again before; 0 after its first delivery.

        Returns:
            Milliseconds.
        """
        if redelivery_count <= 0:
            return self.min_delay_ms
        try:
            return min(self.min_delay_ms * self.multiplier**redelivery_count, self.max_delay_ms)
        except OverflowError:
            return self.max_delay_ms


def check_backoff(name: str, backoff: object) -> None:
    """Raise InvalidConfiguration unless an option is a back-off, or left out."""
    if backoff is not None and not isinstance(backoff, RedeliveryBackoff):
        raise InvalidConfiguration(f"{name} must be a RedeliveryBackoff, which has a method next, not {backoff!r}")
