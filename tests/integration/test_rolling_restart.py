"""`magnetar restart` on several Ray nodes, under load."""

import threading

import magnetar
from support.nodes.ray_hosts import RayHosts

EVERY = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "broker-3", "admin", "coordinator"]
SEND_TIMEOUT_MS = 60_000


def test_the_command_line_restarts_every_process_and_a_producer_goes_on(hosts: RayHosts) -> None:
    with (
        hosts.start_cluster(brokers=3, bookies=3) as cluster,
        hosts.client.network(),
        cluster.client() as client,
    ):
        client.subscribe("restarted", "keeper").close()
        before = {process: cluster.ask("process_id", process=process) for process in EVERY}
        producer = client.create_producer("restarted", send_timeout_millis=SEND_TIMEOUT_MS)
        sent: list[magnetar.MessageId] = []
        failed: list[Exception] = []
        ending = threading.Event()

        def publish() -> None:
            with hosts.client.network():
                while not ending.is_set():
                    try:
                        sent.append(producer.send(b"%d" % len(sent)))
                    except magnetar.MagnetarError as error:
                        failed.append(error)
                        return

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            said = hosts.magnetar("restart", "--data-dir", str(cluster.data_directory), timeout_s=300)
        finally:
            ending.set()
            publishing.join()
        assert failed == []
        assert [line.split()[0] for line in said.splitlines() if "restarted: away for" in line] == EVERY
        assert "done: 8 processes were restarted" in said
        after = {process: cluster.ask("process_id", process=process) for process in EVERY}
        assert all(after[process] != before[process] for process in EVERY)
        states = {one["node_id"]: (one["state"], one["restarts"]) for one in cluster.status()["processes"]}
        assert states == {process: ("running", 0) for process in EVERY if process != "coordinator"}
        cluster.refresh()
        reader = client.create_reader("restarted", magnetar.MessageId.earliest)
        found: set[magnetar.MessageId] = set()
        while sent[-1] not in found:
            found.add(reader.read_next(10_000).message_id())
        assert set(sent) <= found
        assert cluster.ask("missing_copies", copies=3) == []
