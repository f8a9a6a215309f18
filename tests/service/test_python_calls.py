"""The hot path of a message stays short: how many Python calls it makes."""

from pathlib import Path

import magnetar
from support.checks.call_counts import CallLog, exchange, of_magnetar
from support.servers.embedded_cluster import EmbeddedCluster

CALLS_MAX = 305
"""Some 280 on a busy machine, and fewer on a quiet one: `python bench/calls.py` lists them. The rest is for timers."""


def test_one_synced_message_makes_few_python_calls(tmp_path: Path) -> None:
    log = CallLog()
    with (
        log.watching(),
        EmbeddedCluster(tmp_path, scrub_interval_s=0) as cluster,
        magnetar.Client(cluster.service_url) as client,
    ):
        lines = exchange(client, log, 200, warm_up=50, settle_s=0, idle_s=0.5, payload=bytes(100))
    calls = of_magnetar(lines)
    assert 200 < calls < CALLS_MAX, "\n".join(f"{line.calls:.2f} {line.place}" for line in lines)
