"""The programs of `examples`, run as users run them: each in a process of its own, on the cluster's Ray."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import ray
from ray import serve

from magnetar.cluster.ray_cluster import RayCluster

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
TOPICS = {
    "durable_queue": (),
    "serve_inference": ("flowers", "flowers-status"),
    "train_from_stream": ("samples",),
    "batch_inference": ("readings", "rated-readings"),
    "change_feed_to_parquet": ("customers",),
}
"""What each program leaves behind."""


def delete_topics(cluster: RayCluster, program: str) -> None:
    for topic in TOPICS[program]:
        url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}?force=true"
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()
        except urllib.error.HTTPError as error:
            assert error.code == 404


def printed_by(cluster: RayCluster, program: str, directory: Path) -> str:
    """Run a program whose topics are not there yet; returns what it prints."""
    delete_topics(cluster, program)
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-P", f"examples/{program}.py"],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address, "MAGNETAR_DATA_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    delete_topics(cluster, program)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_program_is_tested() -> None:
    assert sorted(TOPICS) == sorted(file.stem for file in (ROOT / "examples").glob("*.py"))


def test_the_order_of_a_worker_that_died_is_shipped_by_another_one(cluster: RayCluster, tmp_path: Path) -> None:
    printed = printed_by(cluster, "durable_queue", tmp_path)
    assert "a worker died with an order" in printed
    shipped = re.findall(r"^lamp (\d) to \w+$", printed, re.MULTILINE)
    assert shipped == ["0", "1", "2", "3", "4", "5"]
    assert "6 orders shipped" in printed


def test_replicas_come_for_a_backlog_of_inference_tasks_and_go(cluster: RayCluster, tmp_path: Path) -> None:
    try:
        printed = printed_by(cluster, "serve_inference", tmp_path)
    finally:
        serve.shutdown()
    found = re.search(r"300 flowers classified, (\d+)% of them rightly", printed)
    assert found is not None and int(found[1]) > 90
    assert re.search(r"up to [12] replicas, and none when the queue was empty", printed)


def test_a_training_that_died_learns_each_sample_once(cluster: RayCluster, tmp_path: Path) -> None:
    printed = printed_by(cluster, "train_from_stream", tmp_path)
    began_with = re.search(r"died, and began again with the weights of (\d+) samples", printed)
    assert began_with is not None and 0 < int(began_with[1]) < 1_100
    assert "learned 2000 samples: weights [3.0, -2.0, 1.0]" in printed


def test_a_batch_inference_finds_the_readings_that_are_unusual(cluster: RayCluster, tmp_path: Path) -> None:
    printed = printed_by(cluster, "batch_inference", tmp_path)
    assert "5000 readings rated" in printed
    assert f"alarms of meters {[*range(0, 5_000, 500)]}" in printed


def test_parquet_files_of_a_change_feed_have_each_change_once(cluster: RayCluster, tmp_path: Path) -> None:
    printed = printed_by(cluster, "change_feed_to_parquet", tmp_path)
    assert "[2, 3] changes exported" in printed
    assert "{'1': Customer(name='Ann', city='Lima'), '3': Customer(name='Eve', city='Cork')}" in printed
    assert "the files have what the topic has: True" in printed
