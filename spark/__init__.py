"""Topics as Spark DataFrames, and DataFrames into topics: through RayDP, or through the data source of any Spark 4.

    import magnetar

    magnetar.connect()
    spark = magnetar.spark.session(num_executors=2, executor_cores=2)
    flights = magnetar.spark.read_topic(spark, "flights", start="earliest", end="latest")
    flights.groupBy("__key").count().show()
    magnetar.spark.write_topic(flights.where("__key = 'AA'"), "flights-aa")
    magnetar.spark.stop()

The owner brokers only say where a topic begins and ends. Spark's tasks then read ranges of its ledgers from the
bookies, and decode them to Arrow. In the other direction they publish with a client each. With Spark 4,
`MagnetarDataSource` does the same as a format of Spark's own.

Everything is loaded on first use: importing this brings in neither Spark nor Ray nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..protocol.errors import SparkUnavailable

if TYPE_CHECKING:
    from .frame_writing import TopicWrite as TopicWrite
    from .frame_writing import write_topic as write_topic
    from .raydp_session import session as session
    from .raydp_session import stop as stop
    from .reading.frame import read_topic as read_topic
    from .reading.frame import release as release
    from .reading.lag import StreamLag as StreamLag
    from .reading.lag import lag as lag
    from .reading.stream import TopicQuery as TopicQuery
    from .reading.stream import stream as stream
    from .source.data_source import MagnetarDataSource as MagnetarDataSource

DATA_SOURCE = "MagnetarDataSource"
"""Not in `__all__`, because PySpark 3.5 has no data sources in Python."""
_HOMES = {
    DATA_SOURCE: ".source.data_source",
    "StreamLag": ".reading.lag",
    "TopicQuery": ".reading.stream",
    "TopicWrite": ".frame_writing",
    "lag": ".reading.lag",
    "read_topic": ".reading.frame",
    "release": ".reading.frame",
    "session": ".raydp_session",
    "stop": ".raydp_session",
    "stream": ".reading.stream",
    "write_topic": ".frame_writing",
}

__all__ = ["lag", "read_topic", "release", "session", "stop", "stream", "write_topic"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name], __name__), name)
    except ModuleNotFoundError as error:
        if name == DATA_SOURCE and error.name in ("pyspark", "pyspark.sql.datasource"):
            raise SparkUnavailable("the data source needs PySpark 4.2: pip install 'magnetar[spark4]'") from error
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
