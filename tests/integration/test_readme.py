"""The examples of README.md, executed as they stand there (only addresses are put in)."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pytest
import ray

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.errors import SparkUnavailable
from magnetar.spark.raydp_session import check_available

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
OFFICIAL_URL = "pulsar://127.0.0.1:6650,127.0.0.1:6652"


def example(name: str) -> str:
    """The code below `<!-- example: name -->`."""
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None, f"README.md has no example {name}"
    return found[1]


def run(code: str, **names: Any) -> dict[str, Any]:
    """Execute an example with these names at hand; returns all names afterwards."""
    scope: dict[str, Any] = {"__name__": "readme", "magnetar": magnetar, "pulsar": pulsar, "ray": ray, **names}
    exec(compile(code, "README.md", "exec"), scope)
    return scope


def test_examples_are_short() -> None:
    for name in ("ray", "official", "spark", "embedded"):
        lines = [line for line in example(name).splitlines() if line.strip()]
        assert len(lines) <= 6, f"{name} has {len(lines)} lines"


def test_from_a_ray_task(cluster: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(example("ray"))
    printed = capsys.readouterr().out
    assert len(re.findall(r"\(\d+,\d+,-1,-?\d+\)", printed.replace(" ", ""))) == 6


def test_with_the_official_client(greetings: RayCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code = example("official")
    assert OFFICIAL_URL in code
    scope = run(code.replace(OFFICIAL_URL, greetings.service_url))
    with pytest.raises(pulsar.AlreadyClosed):  # the example closes it
        scope["client"].close()
    assert "hello" in capsys.readouterr().out


def test_into_spark(greetings: RayCluster, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        check_available()
    except SparkUnavailable as error:
        pytest.skip(str(error))
    run(example("spark"))
    assert "__producerName" in capfd.readouterr().out


def test_in_one_process(tmp_path: Path) -> None:
    """Exactly as printed, in an empty directory, with a clean end."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", example("embedded")],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["magnetar-data"]
