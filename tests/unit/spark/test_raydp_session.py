"""What is checked before Spark is started, and the options it is started with."""

import importlib.util
from pathlib import Path

import pytest

from magnetar.protocol.errors import SparkUnavailable
from magnetar.spark import raydp_session as spark_session


@pytest.mark.parametrize(
    ("report", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ("bash: java: command not found", 0),
    ],
)
def test_java_versions(report: str, major: int) -> None:
    assert spark_session.java_major(report) == major


def test_every_jvm_gets_its_options_and_keeps_those_given() -> None:
    key = "spark.executor.extraJavaOptions"
    configs = spark_session.spark_configs({key: "-Dmine=1", "spark.other": "x"})
    assert configs["spark.other"] == "x"
    for name in spark_session.JAVA_OPTIONS_OF:
        assert "--add-opens=java.base/java.math=ALL-UNNAMED" in configs[name]
    assert configs[key].endswith(" -Dmine=1")
    assert (
        spark_session.spark_configs({"spark.ui.showConsoleProgress": "true"})["spark.ui.showConsoleProgress"] == "true"
    )


def a_java(directory: Path, version: str) -> None:
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def test_a_missing_or_unfit_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="openjdk-17"):
        spark_session.check_available()
    a_java(tmp_path, "25.0.1")
    with pytest.raises(SparkUnavailable, match="is Java 25"):
        spark_session.check_available()
    a_java(tmp_path, "17.0.15")
    spark_session.check_available()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(spark_session, "find_spec", lambda name: None if name == "raydp" else find_spec(name))
    with pytest.raises(SparkUnavailable, match=r"raydp is not installed: run `pip install raydp==1\.6\.5 "):
        spark_session.check_available()


def test_a_pyspark_beyond_raydp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.8")
    with pytest.raises(SparkUnavailable, match=r"3\.5\.7, not 3\.5\.8"):
        spark_session.check_available()
