"""Every fuzz target takes some hundred inputs from fixed seeds; `make fuzz` goes on from there."""

import importlib
from pathlib import Path
from random import Random

import pytest

from fuzz import loop as fuzz_loop
from fuzz.targets import TARGETS

SLOW = {
    "admin": 40,
    "blocks": 100,
    "bookie": 60,
    "broker": 150,
    "broker-rpc": 40,
    "client": 150,
    "coordinator": 60,
    "messages": 60,
    "settings": 100,
    "storage": 60,
}


def test_every_target_of_every_module_is_listed() -> None:
    directory = Path(fuzz_loop.__file__).parent
    others = ("__init__", "run", "targets", "standins")
    modules = [f"fuzz.{path.stem}" for path in directory.glob("*.py") if path.stem not in others]
    found = [getattr(importlib.import_module(module), "TARGETS", []) for module in modules]
    assert sorted(target.name for targets in found for target in targets) == sorted(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_seeded_inputs_find_nothing(name: str) -> None:
    try:
        for seed in range(SLOW.get(name, 300)):
            TARGETS[name].take(TARGETS[name].make(Random(seed)))
    finally:
        fuzz_loop.close()
