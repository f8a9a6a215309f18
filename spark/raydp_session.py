"""A Spark session on Ray: RayDP, started the way that Java 17 and Ray's workers need it.

Spark's executors are Ray actors (JVMs), so the session belongs to the Ray that this process has joined. It ends with
`stop` or with this process. RayDP allows one session a process.

What has to be said and is easily missed:

- Java 17 closes its own packages. Spark, Arrow, and the serializer of Ray's Java workers reach into them. Driver,
  executors and application master need `--add-opens`, or the direction from Spark to Ray kills the executor. Ray needs
  `java.math`, which Spark's own list lacks.
- Executors start Python workers by the name that the driver gives. The default, `python3` from the path, need not be
  the Python that runs this program and has PySpark.
- An executor that asks for more CPUs than Ray has is waited for without end, so that is refused here.

Which RayDP, PySpark and Java fit is in `raydp_pairs`. A session of PySpark 4 has the data source `magnetar`.
"""

# pyright: reportMissingTypeStubs=false
# RayDP brings no types.

import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..protocol.errors import ClusterError, InvalidConfiguration, SparkUnavailable
from ..runtime.ray_calls import cluster_cpus, init, is_name_taken
from .raydp_pairs import RayDPPair, installed_pair

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPENED_PACKAGES = (
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
JAVA_OPTIONS = " ".join(
    [
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        "-Djdk.reflect.useDirectMethodHandle=false",
    ]
)
JAVA_OPTIONS_OF = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)
JAVA_VERSION_MAX = 21
"""Spark 3.5 is made for 8, 11 and 17 and runs on 21; later ones lack the security manager that its Hadoop asks for.
Spark 4 is made for 17 and 21."""
JAVA_TIMEOUT_S = 30.0
MASTER_SUFFIX = "_SPARK_MASTER"
"""RayDP's master is an actor whose name is that of the session with this behind it."""
END_TIMEOUT_S = 30.0
"""How long `stop` waits for the master's end."""
END_POLL_S = 0.05

logger = logging.getLogger(__name__)


def session(
    app_name: str = "magnetar",
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str = "1g",
    configs: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Start Spark on the Ray of this process, or on the one at RAY_ADDRESS.

    What is installed decides on the Spark: RayDP 1.6.5 brings 3.5, a pre-release of RayDP 1.7 brings 4.2. With 4.2 the
    session knows the format `magnetar`.

    Args:
        app_name: Name of the Spark application.
        num_executors: Number of executors.
        executor_cores: Cores of each executor. Ray must have `num_executors × executor_cores` CPUs.
        executor_memory: Heap of each executor, as Spark writes it (`512m`, `2g`).
        configs: More of Spark's settings. Java options are added to those that Spark needs here.

    Returns:
        The session.

    Raises:
        SparkUnavailable: If Java, PySpark or RayDP is missing, or they do not fit one another.
        ClusterError: If there is no Ray.
        InvalidConfiguration: If Ray has too few CPUs, or this process has a session.
    """
    pair = check_available()
    import raydp
    from raydp import context as raydp_context

    if getattr(raydp_context, "_global_spark_context") is not None:  # noqa: B009 (private; raydp raises a bare Exception)
        raise InvalidConfiguration("this process already has a Spark session: stop it with magnetar.spark.stop()")
    _join_ray()
    cpus = cluster_cpus()
    if num_executors * executor_cores > cpus:
        raise InvalidConfiguration(
            f"{num_executors} executors of {executor_cores} cores do not fit into a Ray of {cpus:g} CPUs: ask for fewer"
        )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = raydp.init_spark(
        app_name, num_executors, executor_cores, executor_memory, configs=spark_configs(configs or {}, pair)
    )
    if pair.has_data_source:
        from .source.data_source import MagnetarDataSource

        spark.dataSource.register(MagnetarDataSource)
    return spark


def stop() -> None:
    """End the Spark session of this process, and free what `read_topic` holds for it.

    It waits for the end, so that another session can begin at once. A second call does nothing.
    """
    from .reading.frame import release_all

    release_all()
    if "raydp" in sys.modules:
        import raydp
        from raydp import context as raydp_context

        context = getattr(raydp_context, "_global_spark_context")  # noqa: B009 (private; raydp has no question for it)
        raydp.stop_spark()
        if context is not None:
            _wait_end(context._app_name + MASTER_SUFFIX)


def spark_configs(configs: Mapping[str, str], pair: RayDPPair) -> dict[str, str]:
    """`configs` with the Java options that are needed in front of those given, and with what the pair needs."""
    merged = {"spark.ui.showConsoleProgress": "false", **pair.configs, **configs}
    for key in JAVA_OPTIONS_OF:
        merged[key] = f"{JAVA_OPTIONS} {configs.get(key, '')}".strip()
    return merged


def check_available() -> RayDPPair:
    """What Spark can be started with here. Raises SparkUnavailable, with what to install, if it cannot."""
    pair = installed_pair()
    java = shutil.which("java")
    if java is None:
        raise SparkUnavailable("Java is not on the PATH: install Java 17 (Debian, Ubuntu: openjdk-17-jre-headless)")
    version = _java_version(java)
    if not pair.java_min <= version <= JAVA_VERSION_MAX:
        raise SparkUnavailable(
            f"{java} is Java {version}, but Spark {pair.pyspark} needs {pair.java_min} to {JAVA_VERSION_MAX}: "
            "install Java 17",
            version=version,
        )
    return pair


def java_major(report: str) -> int:
    """The major version in what `java -version` prints: 17 of `17.0.15`, 8 of `1.8.0_392`; 0 if there is none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', report)
    if found is None:
        return 0
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def _java_version(java: str) -> int:
    try:
        result = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailable(f"{java} does not run: {error}") from error
    return java_major(result.stderr + result.stdout)


def _wait_end(master: str) -> None:
    """Wait until the name of RayDP's master is free.

    RayDP only asks the actor to end. A name that is taken keeps the next session of that name from its start.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while is_name_taken(master):
        if time.monotonic() > deadline:
            logger.warning("%s has not ended in %d s: give the next session another name", master, END_TIMEOUT_S)
            return
        time.sleep(END_POLL_S)  # Ray tells nobody that a name is free


def _join_ray() -> None:
    """Connect to Ray, if this process has not yet. Raises ClusterError; a Ray of its own would hold no cluster."""
    import ray

    if ray.is_initialized():
        return
    address = os.environ.get("RAY_ADDRESS")
    if not address or address == "local":
        raise ClusterError("this process has not joined a Ray: call magnetar.connect() or magnetar.start() first")
    try:
        init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ClusterError(f"no Ray answers at {address}: {error}") from error
