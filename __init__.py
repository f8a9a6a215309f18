"""Magnetar: Apache Pulsar's messaging system built on Ray.

Brokers, bookies and the metadata coordinator are Ray actors; topics are stored in replicated ledgers; clients speak
Pulsar's own binary protocol, so both the client below and every official Pulsar client work; partitions are read in
bulk into Spark DataFrames (`magnetar.spark`).

    import magnetar

    cluster = magnetar.start()                  # or magnetar.connect(), or `magnetar start --detach` in a shell
    client = magnetar.Client()                  # finds the cluster through Ray; takes a URL of any Pulsar too
    client.create_producer("greetings").send(b"hello")

Everything is loaded on first use: importing the package is instant and brings in neither Ray nor Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import spark as spark
    from .cluster.starting import connect as connect
    from .cluster.starting import start as start

__version__ = "0.1.0"

_HOMES = {
    "start": ".cluster.starting",
    "connect": ".cluster.starting",
}
_MODULES = {"spark"}

__all__ = ["connect", "spark", "start"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name], __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
