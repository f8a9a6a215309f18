"""What a damaged record, or a defect, leaves of the metadata store's other operations."""

import asyncio
from pathlib import Path

import pytest

from magnetar.protocol.errors import MetadataError
from magnetar.runtime.environment import Environment
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.sql import SqlMetadataStore, sqlite_url
from magnetar.storage.metadata.sql_transaction import Transaction
from magnetar.storage.metadata.store import MetadataStore
from support.stores.memory_store import MemoryMetadataStore


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("damaged", [b"", b"\xc1", b"\x80", b"\x07", b"\x81\xa4next\xa1x"])
async def test_a_damaged_counter_fails_alone(env: Environment, tmp_path: Path, damaged: bytes, kind: str) -> None:
    store: MetadataStore = MemoryMetadataStore()
    if kind == "sqlite":
        store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "metadata.sqlite")), create=True)
    await store.put(metadata_keys.counter("bad"), damaged, None)
    results = await asyncio.gather(
        store.put("a", b"1", None), store.allocate("bad", 1), store.allocate("good", 1), return_exceptions=True
    )
    assert isinstance(results[1], MetadataError)
    assert results[2] == 1 and await store.get("a") == (b"1", results[0])
    assert await store.get(metadata_keys.counter("bad")) == (damaged, 0)
    await store.put("b", b"", None)
    await store.close()


async def test_a_defect_in_a_transaction_leaves_none_open(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqlMetadataStore.open(env, sqlite_url(str(tmp_path / "metadata.sqlite")), create=True)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "_write_changes", lambda self: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await store.put("a", b"", None)
    assert await store.get("a") is None
    await store.put("a", b"", None)
    await store.close()
