"""Bookies whose disks are full, as a producer meets them: the error says what is the matter."""

import subprocess
import sys

import pytest

import magnetar
from magnetar.runtime.files import DiskUsage, RealFiles
from support.servers.embedded_cluster import EmbeddedCluster

CAUSE = "bookie-1 is read-only: its disk is full"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    full = DiskUsage(total_bytes=1 << 40, used_bytes=(1 << 40) - (1 << 30), free_bytes=1 << 30)
    monkeypatch.setattr(RealFiles, "disk_usage", lambda files, path: full)
    with EmbeddedCluster(tmp_path) as running:
        yield running


def test_a_producer_of_ours_is_told_that_the_disks_are_full(cluster):
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer("full", send_timeout_millis=1500)
        with pytest.raises(magnetar.Timeout) as caught:
            producer.send(b"hello")
        assert CAUSE in str(caught.value)
        assert "but 0 are usable" in str(caught.value)


# In a process of its own: the official client keeps the first logger that a process gives it.
OFFICIAL = """
import sys
import pulsar
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
producer = client.create_producer("full", send_timeout_millis=1500)
try:
    producer.send(b"hello")
except pulsar.Timeout:
    print("timed out")
client.close()
"""


def test_an_official_client_is_told_that_the_disks_are_full(cluster):
    command = [sys.executable, "-c", OFFICIAL, cluster.service_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "timed out" in ended.stdout
    assert CAUSE in ended.stdout + ended.stderr
