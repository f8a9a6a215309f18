"""Pairs of RayDP and PySpark: which one is installed, and what is said of those that do not fit."""

import importlib.util
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from magnetar.protocol.errors import SparkUnavailable
from magnetar.spark import raydp_pairs
from magnetar.spark.raydp_pairs import PRE_RELEASED, RELEASED, RayDPPair, installed_pair

ROOT = Path(__file__).resolve().parents[3]
OF_3, OF_4 = r"pip install raydp==1\.6\.5 ", r"pip install raydp==1\.7\.0b20260911\.dev0 "


def install(monkeypatch: pytest.MonkeyPatch, raydp: str, pyspark: str) -> None:
    monkeypatch.setattr(raydp_pairs, "version", lambda name: {"raydp": raydp}[name])
    monkeypatch.setattr("pyspark.__version__", pyspark)


def lacks(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(raydp_pairs, "find_spec", lambda name: None if name in missing else find_spec(name))


@pytest.mark.parametrize(
    ("raydp", "pyspark", "pair"),
    [
        ("1.6.5", "3.5.7", RELEASED),
        ("1.6.5", "3.5.0", RELEASED),
        ("1.7.0b20260911.dev0", "4.2.1", PRE_RELEASED),
        ("1.7.0", "4.2.0", PRE_RELEASED),
    ],
)
def test_the_pair_that_is_installed_is_used(
    monkeypatch: pytest.MonkeyPatch, raydp: str, pyspark: str, pair: RayDPPair
) -> None:
    install(monkeypatch, raydp, pyspark)
    assert installed_pair() is pair


@pytest.mark.parametrize(
    ("raydp", "pyspark", "likely", "other"),
    [
        ("1.6.5", "3.5.8", OF_3, OF_4),
        ("1.6.5", "3.4.4", OF_3, OF_4),
        ("1.6.5", "4.2.1", OF_4, OF_3),
        ("1.7.0b20260911.dev0", "3.5.7", OF_3, OF_4),
        ("1.7.0b20260911.dev0", "4.1.1", OF_4, OF_3),
        ("1.7.0b20260911.dev0", "4.3.0", OF_4, OF_3),
        ("1.8.0", "4.2.1", OF_4, OF_3),
        ("1.5.0", "5.0.0", OF_3, OF_4),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, raydp: str, pyspark: str, likely: str, other: str
) -> None:
    install(monkeypatch, raydp, pyspark)
    said = rf"RayDP {raydp} with PySpark {pyspark}\. Run `{likely}.* for PySpark \d\.\d, or `{other}"
    with pytest.raises(SparkUnavailable, match=said):
        installed_pair()


def test_what_is_missing_goes_by_the_pyspark_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, "raydp")
    with pytest.raises(SparkUnavailable, match=rf"^raydp is not installed: run `{OF_3}"):
        installed_pair()
    monkeypatch.setattr("pyspark.__version__", "4.2.1")
    with pytest.raises(SparkUnavailable, match=rf"^raydp is not installed: run `{OF_4}"):
        installed_pair()
    lacks(monkeypatch, "pyspark", "raydp")
    with pytest.raises(SparkUnavailable, match=rf"^pyspark and raydp is not installed: run `{OF_3}"):
        installed_pair()


def test_a_raydp_that_is_no_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(raydp_pairs, "version", unknown)
    with pytest.raises(SparkUnavailable, match="raydp was not installed as a package"):
        installed_pair()


def test_errors_name_what_the_extras_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, pair in (("spark", RELEASED), ("spark4", PRE_RELEASED), ("spark4-ray", PRE_RELEASED)):
        for requirement in extras[extra]:
            wanted = requirement.partition(";")[0].strip()
            name = wanted.partition(">=")[0]
            if name in ("pyspark", "raydp") or "==" in wanted:
                assert wanted in pair.install
            elif not wanted.startswith("magnetar["):
                assert name in pair.install
