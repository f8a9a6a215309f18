"""The two servers that a scenario runs on: a real Pulsar from Maven's jars, and an embedded Magnetar."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import magnetar

from .stage import Server

PULSAR_VERSION = "4.2.4"
CLUSTER = "standalone"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0

HERE = Path(__file__).parent / "pulsar"
BUILD = Path(__file__).resolve().parents[2] / "build"

_CONFIGURATION = {
    "clusterName": CLUSTER,
    "metadataStoreUrl": "",
    "configurationMetadataStoreUrl": "",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "allowAutoTopicCreationType": "non-partitioned",
    # Idle topics go after a minute: a recording must not depend on that.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "loadBalancerEnabled": "false",
    "transactionCoordinatorEnabled": "false",
    "numIOThreads": "2",
    "numHttpServerThreads": "4",
    # The bookie reads the same file.
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "journalSyncData": "false",
    "allowLoopback": "true",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "diskUsageLwmThreshold": "0.98",
    "dbStorage_rocksDB_writeBufferSizeMB": "4",
    "dbStorage_rocksDB_blockSize": "4096",
    "nettyMaxFrameSizeBytes": "5253120",
}
_OPENED_PACKAGES = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.base/sun.nio.ch",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class OracleError(Exception):
    """Pulsar cannot be had or does not start."""


def maven_jars(project: Path, version: str, variable: str, marker: str) -> Path:
    """The directory with the jars of a Maven project: that in a variable of the environment, else one in `build`.

    It is filled from Maven Central the first time. `marker` begins the name of one of the jars.
    """
    if given := os.environ.get(variable):
        return Path(given)
    jars = BUILD / project.parent.name / version
    if not any(jars.glob(f"{marker}*.jar")):
        if shutil.which("mvn") is None:
            raise OracleError("Maven is missing: install it with 'apt-get install maven' as root")
        print(f"fetching jars of {project.parent.name} {version} from Maven Central into {jars} (once)", flush=True)
        command = ["mvn", "-q", "-f", str(project), f"-Dpulsar.version={version}"]
        subprocess.run([*command, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], check=True)
    return jars


def java() -> str:
    """The program that runs Java."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


@contextlib.contextmanager
def pulsar_server(directory: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    """A real Pulsar with one bookie, which ends with the block. Its log is `directory/log`."""
    jars = maven_jars(HERE / "pom.xml", PULSAR_VERSION, "PULSAR_LIB", "pulsar-broker-")
    port, web_port, bookie_port = _free_ports(3)
    file = directory / "standalone.conf"
    directory.mkdir(parents=True, exist_ok=True)
    values = {**_CONFIGURATION, "brokerServicePort": str(port), "webServicePort": str(web_port), **settings}
    values = {name: value.replace("{port}", str(port)) for name, value in values.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    command = [java(), "-Xmx1g", "-XX:MaxDirectMemorySize=1g"]
    command += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    command += ["-Dio.netty.tryReflectionSetAccessible=true", "-Djava.net.preferIPv4Stack=true"]
    command += [f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}", "-cp", f"{jars}/*"]
    command += ["org.apache.pulsar.PulsarStandaloneStarter", "--config", str(file), "--no-functions-worker"]
    command += ["--no-stream-storage", "--advertised-address", "127.0.0.1", "--num-bookies", "1"]
    command += ["--metadata-dir", str(directory / "metadata"), "--bookkeeper-dir", str(directory / "bookkeeper")]
    command += ["--bookkeeper-port", str(bookie_port)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Server(f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{web_port}")
        _wait_ready(process, server, directory / "log")
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def magnetar_server(directory: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    """An embedded cluster with one broker and one bookie, which ends with the block."""
    with magnetar.start(
        embedded=True,
        brokers=1,
        bookies=1,
        ensemble="1/1/1",
        port=0,
        admin_port=0,
        data_dir=directory,
        settings={"clusterName": CLUSTER, "allowAckQuorumOfOne": "true", **settings},
    ) as cluster:
        yield Server(cluster.service_url, cluster.admin_url)


def _wait_ready(process: subprocess.Popen[bytes], server: Server, log: Path) -> None:
    """Healthy alone is not enough: the first namespace comes later."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OracleError(f"Pulsar ended at its start; the end of {log}:\n{log.read_text()[-2000:]}")
        if _get(f"{server.admin_url}/admin/v2/brokers/health") == "ok" and "public/default" in _get(
            f"{server.admin_url}/admin/v2/namespaces/public"
        ):
            return
        time.sleep(0.2)
    raise OracleError(f"Pulsar did not become ready within {START_TIMEOUT_S:.0f} s: read {log}")


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.read().decode()
    except (OSError, urllib.error.URLError):
        return ""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
