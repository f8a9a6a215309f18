"""All targets by name. A target's module is imported when it is first asked for: a run of one target need not
instrument what only others use.
"""

import importlib
from collections.abc import Iterator, Mapping

from .target import Target

_MODULES = {
    "fuzz.decoders": ("frames", "entries", "batches", "compression", "rpc-frames", "rpc-messages"),
    "fuzz.messages": ("blocks", "messages"),
    "fuzz.records": ("records",),
    "fuzz.cursors": ("cursors",),
    "fuzz.broker": ("broker",),
    "fuzz.broker_rpc": ("broker-rpc",),
    "fuzz.client": ("client",),
    "fuzz.rpc": ("rpc", "bookie"),
    "fuzz.coordinator": ("coordinator",),
    "fuzz.admin": ("admin",),
    "fuzz.storage": ("storage", "files"),
    "fuzz.settings": ("settings",),
}


class _Targets(Mapping[str, Target]):
    def __init__(self) -> None:
        self._modules = {name: module for module, names in _MODULES.items() for name in names}

    def __getitem__(self, name: str) -> Target:
        found: list[Target] = importlib.import_module(self._modules[name]).TARGETS
        return next(target for target in found if target.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


TARGETS = _Targets()
