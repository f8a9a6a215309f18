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
"""

# pyright: reportMissingTypeStubs=false
# RayDP brings no types.

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..protocol.errors import ClusterError, InvalidConfiguration, SparkUnavailable
from ..runtime.ray_calls import cluster_cpus, init

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
JAVA_VERSION_MIN = 11
JAVA_VERSION_MAX = 21
"""Spark 3.5 is made for 8, 11 and 17 and runs on 21; later ones lack the security manager that Hadoop asks for."""
PYSPARK_VERSION_MAX = (3, 5, 7)
"""RayDP 1.6.5 carries shims up to here."""
JAVA_TIMEOUT_S = 30.0


def session(
    app_name: str = "magnetar",
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str = "1g",
    configs: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Start Spark on the Ray of this process, or on the one at RAY_ADDRESS.

    Args:
        app_name: Name of the Spark application.
        num_executors: Number of executors.
        executor_cores: Cores of each executor. Ray must have `num_executors × executor_cores` CPUs.
        executor_memory: Heap of each executor, as Spark writes it (`512m`, `2g`).
        configs: More of Spark's settings. Java options are added to those that Spark needs here.

    Returns:
        The session.

    Raises:
        SparkUnavailable: If Java, PySpark or RayDP is missing or unfit.
        ClusterError: If there is no Ray.
        InvalidConfiguration: If Ray has too few CPUs, or this process has a session.
    """
    check_available()
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
    return raydp.init_spark(
        app_name, num_executors, executor_cores, executor_memory, configs=spark_configs(configs or {})
    )


def stop() -> None:
    """End the Spark session of this process, and free what `read_topic` holds for it.

    A second call does nothing.
    """
    from .reading.frame import release_all

    release_all()
    if "raydp" in sys.modules:
        import raydp

        raydp.stop_spark()


def spark_configs(configs: Mapping[str, str]) -> dict[str, str]:
    """`configs` with the Java options that are needed in front of those given."""
    merged = {"spark.ui.showConsoleProgress": "false", **configs}
    for key in JAVA_OPTIONS_OF:
        merged[key] = f"{JAVA_OPTIONS} {configs.get(key, '')}".strip()
    return merged


INSTALL = "pip install raydp==1.6.5 'pyspark>=3.5.5,<=3.5.7' pyarrow pandas numpy setuptools"
"""What the extra `spark` installs, from a package index: Magnetar itself is on none."""


def check_available() -> None:
    """Raise SparkUnavailable, with what to install, unless Spark can be started here."""
    missing = [name for name in ("pyspark", "raydp", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise SparkUnavailable(f"{' and '.join(missing)} is not installed: run `{INSTALL}`", missing=missing)
    import pyspark

    if version_numbers(pyspark.__version__) > PYSPARK_VERSION_MAX:
        newest = ".".join(map(str, PYSPARK_VERSION_MAX))
        raise SparkUnavailable(
            f"RayDP works with PySpark up to {newest}, not {pyspark.__version__}: install an older PySpark"
        )
    java = shutil.which("java")
    if java is None:
        raise SparkUnavailable("Java is not on the PATH: install Java 17 (Debian, Ubuntu: openjdk-17-jre-headless)")
    version = _java_version(java)
    if not JAVA_VERSION_MIN <= version <= JAVA_VERSION_MAX:
        raise SparkUnavailable(
            f"{java} is Java {version}, but Spark 3.5 needs {JAVA_VERSION_MIN} to {JAVA_VERSION_MAX}: install Java 17",
            version=version,
        )


def version_numbers(text: str) -> tuple[int, ...]:
    """The first three numbers of a version."""
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


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
