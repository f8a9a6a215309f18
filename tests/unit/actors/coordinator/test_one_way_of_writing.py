"""The coordinator changes its records in one way only, which settles what is unknown (`certain_records`)."""

import ast
from pathlib import Path

import pytest

from magnetar.actors.coordinator import office
from magnetar.actors.desired import state
from magnetar.storage.metadata.store import MetadataStore

WRITES = {"put", "delete", "write_many"}
ROOMS = [Path(module.__file__ or "").parent for module in (office, state)]
FILES = [file for room in ROOMS for file in sorted(room.glob("*.py"))]


def direct_writes(source: str) -> list[str]:
    """Calls of a metadata store's own writes, and imports of what writes without settling."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("certain_writes"):
            found.append(f"{node.lineno}: imports certain_writes")
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES):
            continue
        target = ast.unparse(node.func.value)
        if target.rpartition(".")[2] in {"store", "_store", "metadata", "_metadata"}:
            found.append(f"{node.lineno}: {target}.{node.func.attr}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_coordinator_writes_its_records_in_one_way(file: Path) -> None:
    assert direct_writes(file.read_text()) == []


def test_a_direct_write_is_seen() -> None:
    assert direct_writes("async def f(self): await self._store.put('k', b'', 1)") == ["1: self._store.put"]
    assert direct_writes("from ...storage.metadata.certain_writes import put_certain") == ["1: imports certain_writes"]
    assert all(hasattr(MetadataStore, name) for name in WRITES) and len(FILES) > 20
