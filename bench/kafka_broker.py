"""An Apache Kafka broker on this machine, in its own mode without ZooKeeper: the anchor of the rows about Spark."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.spark.jars import jars

START_TIMEOUT_S = 60.0
HEAP = "1g"
CLUSTER_ID = "bWFnbmV0YXItYmVuY2gtMA"


@contextlib.contextmanager
def kafka(directory: Path, partitions: int) -> Iterator[str]:
    """A broker with its data below `directory`; topics have `partitions`. Gives its address; ends with the block."""
    listener, controller = _free_ports(2)
    home = directory / "kafka"
    home.mkdir(parents=True)
    properties = home / "server.properties"
    properties.write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        f"listeners=PLAINTEXT://127.0.0.1:{listener},CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{listener}\n"
        "controller.listener.names=CONTROLLER\n"
        f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"log.dirs={home / 'data'}\n"
        f"num.partitions={partitions}\n"
        "offsets.topic.replication.factor=1\n"
        "transaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\n"
    )
    java = ["java", f"-Xmx{HEAP}", "-cp", os.pathsep.join(map(str, jars("kafka")))]
    with (home / "log").open("wb") as log:
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)],
            stdout=log,
            stderr=log,
            check=True,
        )
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
        try:
            _wait(process, listener, home / "log")
            yield f"127.0.0.1:{listener}"
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(home)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Kafka did not start: {log.read_text(errors='replace')[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            time.sleep(0.2)
