"""The policy of messages with a delivery time: `delayedDelivery` in Pulsar."""

from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .kinds import LONG_MAX, FieldRecord, Flag, WholeNumber, part


@dataclass(frozen=True, slots=True)
class DelayedDelivery(FieldRecord):
    """Whether Shared and Key_Shared subscriptions hold messages back, how exactly, and for how long at most.

    The names say the unit where Pulsar's do not: all times are in milliseconds. A `max_delay_ms` of 0 is no bound.
    """

    active: bool = part("active", Flag(), False)
    tick_ms: int = part("tickTime", WholeNumber(-LONG_MAX, long=True), 0)
    max_delay_ms: int = part("maxDeliveryDelayInMillis", WholeNumber(-LONG_MAX, long=True), 0)


def default_delayed_delivery(settings: Settings) -> DelayedDelivery:
    """What the settings say."""
    return DelayedDelivery(
        settings.delayed_delivery_enabled, settings.delayed_delivery_tick_ms, settings.delayed_delivery_max_ms
    )
