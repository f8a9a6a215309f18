"""What is checked before Spark is started, and the options it is started with."""

from pathlib import Path

import pytest

from magnetar.protocol.errors import SparkUnavailable
from magnetar.spark import raydp_session as spark_session
from magnetar.spark.raydp_pairs import PRE_RELEASED, RELEASED


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
    configs = spark_session.spark_configs({key: "-Dmine=1", "spark.other": "x"}, RELEASED)
    assert configs["spark.other"] == "x"
    for name in spark_session.JAVA_OPTIONS_OF:
        assert "--add-opens=java.base/java.math=ALL-UNNAMED" in configs[name]
    assert configs[key].endswith(" -Dmine=1")


def test_settings_of_the_user_go_before_those_of_magnetar() -> None:
    pushdown, shown = "spark.sql.python.filterPushdown.enabled", "spark.ui.showConsoleProgress"
    assert pushdown not in spark_session.spark_configs({}, RELEASED)
    configs = spark_session.spark_configs({}, PRE_RELEASED)
    assert (configs[pushdown], configs[shown]) == ("true", "false")
    configs = spark_session.spark_configs({pushdown: "false", shown: "true"}, PRE_RELEASED)
    assert (configs[pushdown], configs[shown]) == ("false", "true")


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
    assert spark_session.check_available() is RELEASED


def test_spark_4_needs_a_newer_java_than_spark_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    a_java(tmp_path, "11.0.2")
    assert spark_session.check_available() is RELEASED
    monkeypatch.setattr(spark_session, "installed_pair", lambda: PRE_RELEASED)
    with pytest.raises(SparkUnavailable, match=r"is Java 11, but Spark 4\.2 needs 17 to 21: install Java 17"):
        spark_session.check_available()
    a_java(tmp_path, "17.0.15")
    assert spark_session.check_available() is PRE_RELEASED
