"""What a process keeps for the tasks that it runs one after the other."""

from collections.abc import AsyncGenerator
from typing import Any

import pyarrow as pa
import pytest

from magnetar.bulk import task_reading
from magnetar.bulk.access import ClusterAccess
from magnetar.bulk.read_plan import ReadSplit
from magnetar.bulk.task_reading import TaskRead, read_split
from magnetar.bulk.typed.choice import RowShape
from magnetar.runtime.rpc.keys import NodeKeys

made: list[str] = []


class Kept:
    def __init__(self, admin_url: str, access: ClusterAccess) -> None:
        made.append(admin_url)

    async def read(self, task: TaskRead) -> AsyncGenerator[pa.RecordBatch]:
        for batch in ():
            yield batch


def test_a_cluster_that_has_another_admin_url_gets_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_reading, "_Worker", Kept)
    monkeypatch.setattr(task_reading, "_workers", dict[Any, Any]())
    access = ClusterAccess("cluster", NodeKeys("reader", "", b"", {}), ("127.0.0.1", 1))
    split = ReadSplit(*[() for _ in ReadSplit._fields])  # type: ignore[arg-type]
    for admin_url in ("http://a:1", "http://a:1", "http://b:2"):
        assert [*read_split(TaskRead(admin_url, access, split, RowShape(("value",)), (), 60.0))] == []
    assert made == ["http://a:1", "http://b:2"]
