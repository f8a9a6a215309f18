"""Topics as Ray datasets, and datasets into topics.

    import magnetar

    magnetar.connect()
    flights = magnetar.data.read_topic("flights", schema="auto")
    late = flights.filter(expr=ray.data.expressions.col("delay") > 60)
    late.write_datasink(magnetar.data.TopicDatasink("late-flights", schema="avro"))

The owner brokers only say where a topic begins and ends. Ray Data's tasks then read ranges of its ledgers from the
bookies, and decode them to Arrow.

    with magnetar.data.follow("flights", "delays").iter_batches(batch_format="pandas") as batches:
        for batch in batches:
            ...

`follow` gives batches that go on, from a subscription. Actors of Ray receive entries from the owner brokers, and decode
them in the same way.

Everything is loaded on first use: importing this brings in neither Ray nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .datasink import TopicDatasink as TopicDatasink
    from .datasource import TopicDatasource as TopicDatasource
    from .datasource import read_topic as read_topic
    from .followed_batches import FollowedBatches as FollowedBatches
    from .following import Following as Following
    from .following import follow as follow

_HOMES = {
    "FollowedBatches": ".followed_batches",
    "Following": ".following",
    "TopicDatasink": ".datasink",
    "TopicDatasource": ".datasource",
    "follow": ".following",
    "read_topic": ".datasource",
}

__all__ = ["FollowedBatches", "Following", "TopicDatasink", "TopicDatasource", "follow", "read_topic"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
