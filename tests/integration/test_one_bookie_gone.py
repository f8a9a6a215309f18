"""With 3 bookies and 3/3/2 one may go: publishing goes on, across a rollover too, and all data is on three again after
its return.
"""

import pytest

import magnetar
from support.checks.replicas import missing_copies
from support.clients.workload import Publisher, check_history, read_log
from support.servers import ray_nodes

SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": 200,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "auditorPeriodicCheckInterval": 2.0,
    "addEntryTimeoutSec": 1.0,
}


@pytest.mark.promise("15.3", "29.5")
def test_publishing_goes_on_and_the_copies_come_back(start_cluster, tmp_path):
    cluster = start_cluster(tmp_path / "data", settings=SMALL_LEDGERS)
    client = cluster.client()
    client.subscribe("telemetry", "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    with Publisher(
        cluster.service_url, "telemetry", in_flight_max=50, pause_s=0.008, batching_enabled=False
    ) as publisher:
        publisher.wait_for(500)
        with ray_nodes.Stopped("bookie-3"):
            publisher.wait_for(2000)  # ten ledgers' worth
            assert missing_copies(3), "a bookie was stopped and yet nothing lacks its third copy"
        publisher.wait_for(1000)
    ray_nodes.wait_until(lambda: not missing_copies(3), "every closed ledger has three copies", 60, interval_s=1)
    check_history(publisher.history, read_log(client, "telemetry"))
    client.close()
