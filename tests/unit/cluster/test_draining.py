"""What `magnetar drain` says at its end."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from magnetar.cluster import draining, ray_cluster
from magnetar.cluster.handle import Cluster

BEFORE: Any = {"brokers": ["broker-1"], "bookies": ["bookie-1"], "draining": {}, "left_over": {"bookie-7": "old"}}


class Drained:
    """A cluster whose drains end at once."""

    def __init__(self, left_over: dict[str, str]) -> None:
        self.left_over = left_over

    def wait_drained(self, **options: Any) -> dict[str, str]:
        return self.left_over


@pytest.mark.parametrize(
    ("left_over", "says"),
    [
        ({"bookie-7": "old"}, []),
        (
            {"bookie-7": "old", "bookie-2": "its machine [10.0.0.2] is away"},
            ["bookie-2: its machine [10.0.0.2] is away"],
        ),
    ],
)
def test_the_command_names_what_its_own_drain_left_over(
    left_over: dict[str, str], says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "find_on_ray", lambda directory: Drained(left_over))
    console = Console(file=io.StringIO(), width=200)

    def change(cluster: Cluster) -> Any:
        return BEFORE

    draining.change_members(console, Path("/data"), change, wait=True)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.removeprefix("left over: ") for line in lines if line.startswith("left over")] == says
    assert lines[-1].startswith("done")
