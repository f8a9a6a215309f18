"""Which RayDP goes with which PySpark and Java. `magnetar.spark.session` uses the pair that is installed.

RayDP's jars are compiled for one Scala. PySpark 3.5 brings Scala 2.12, and PySpark 4 brings 2.13. In a pair that does
not fit, RayDP's JVM ends before it listens, and all that RayDP says is that it did. So such a pair is refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from re import findall

from ..protocol.errors import SparkUnavailable


@dataclass(frozen=True)
class RayDPPair:
    """A series of RayDP, and what it works with."""

    raydp: tuple[int, int]
    pyspark_min: tuple[int, int, int]
    pyspark_end: tuple[int, int, int]
    """The first version that it does not work with."""
    java_min: int
    install: str
    """The command that installs the pair from a package index. Magnetar itself is on none."""
    has_data_source: bool
    """Whether this PySpark can use `MagnetarDataSource`."""
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of Spark that Magnetar needs there."""

    @property
    def pyspark(self) -> str:
        """The series of PySpark, as people write it."""
        return "{}.{}".format(*self.pyspark_min)


RELEASED = RayDPPair(
    raydp=(1, 6),
    pyspark_min=(3, 5, 0),
    pyspark_end=(3, 5, 8),  # RayDP 1.6.5 has shims up to 3.5.7
    java_min=11,
    install="pip install raydp==1.6.5 'pyspark>=3.5.5,<=3.5.7' pyarrow pandas numpy setuptools",
    has_data_source=False,
)
"""What the extra `spark` installs: the default."""
PRE_RELEASED = RayDPPair(
    raydp=(1, 7),
    pyspark_min=(4, 2, 0),  # RayDP has shims for 4.0 and 4.1, too, where Magnetar's data source does not work
    pyspark_end=(4, 3, 0),
    java_min=17,
    install="pip install raydp==1.7.0b20260911.dev0 'pyspark>=4.2,<4.3' pyarrow 'pandas<3' numpy",
    has_data_source=True,
    # PySpark refuses a source that takes filters where they are not handed to it.
    configs={"spark.sql.python.filterPushdown.enabled": "true"},
)
"""What the extra `spark4-ray` installs. Versions of one series count as one, so the release of 1.7 is taken as well."""
PAIRS = (RELEASED, PRE_RELEASED)
NEEDED = ("pyspark", "raydp", "pyarrow", "pandas")


def installed_pair() -> RayDPPair:
    """The pair of this environment. Raises SparkUnavailable, with what to install, if there is none."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if "pyspark" in missing:
        spark, numbers = None, None
    else:
        import pyspark

        spark, numbers = pyspark.__version__, version_numbers(pyspark.__version__)
    likely = next((pair for pair in PAIRS if numbers and pair.pyspark_min[0] == numbers[0]), RELEASED)
    if missing:
        raise SparkUnavailable(f"{' and '.join(missing)} is not installed: run `{likely.install}`", missing=missing)
    raydp = _raydp_version(likely)
    for pair in PAIRS:
        if numbers and version_numbers(raydp)[:2] == pair.raydp and pair.pyspark_min <= numbers < pair.pyspark_end:
            return pair
    (other,) = (pair for pair in PAIRS if pair is not likely)
    raise SparkUnavailable(
        f"Magnetar does not run on RayDP {raydp} with PySpark {spark}. Run `{likely.install}` for PySpark "
        f"{likely.pyspark}, or `{other.install}` for PySpark {other.pyspark}",
        raydp=raydp,
        pyspark=spark,
    )


def version_numbers(text: str) -> tuple[int, ...]:
    """The first three numbers of a version; what a pre-release has further is left out."""
    return tuple(map(int, findall(r"\d+", text)[:3]))


def _raydp_version(likely: RayDPPair) -> str:
    """The version of the package, because `raydp` itself must not be imported beside a PySpark that does not fit."""
    try:
        return version("raydp")
    except PackageNotFoundError as error:
        raise SparkUnavailable(f"raydp was not installed as a package: run `{likely.install}`") from error
