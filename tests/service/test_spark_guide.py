"""The worked example of the guide for Spark: flights go through Spark 4 in windows, back, and into a picture."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pandas
import pytest

import magnetar
from magnetar.cluster.demo.flights import FLIGHTS, file
from support.checks.document_examples import example
from support.servers.embedded_cluster import EmbeddedCluster
from support.spark.spark4 import Spark4

pytestmark = pytest.mark.cluster_settings(brokers=2, deduplication_enabled=True)

GUIDE = "docs/guides/spark.md"
PICTURE_BYTES_MAX = 100_000


@pytest.fixture
def code(cluster: EmbeddedCluster, admin_url: str, tmp_path: Path) -> "Code":
    return Code(
        {
            "pulsar://head:6650": cluster.service_url,
            "http://head:8080": admin_url,
            "/data/": f"{tmp_path}/",
        }
    )


class Code:
    """The code of the guide with the addresses of this test."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self._addresses = addresses

    def __getitem__(self, name: str) -> str:
        text = example(GUIDE, name)
        for written, real in self._addresses.items():
            text = text.replace(written, real)
        return text

    def run(self, name: str) -> dict[str, Any]:
        """Run it here; all names afterwards."""
        scope: dict[str, Any] = {"__name__": "guide", "magnetar": magnetar}
        exec(compile(self[name], GUIDE, "exec"), scope)
        return scope


def counted_by_pandas() -> "pandas.DataFrame":
    """Flights, and those that were cancelled, of each day in New York, from the original file."""
    table = pandas.read_csv(file(), usecols=["time_hour", "dep_delay"], parse_dates=["time_hour"])
    day = (table["time_hour"] - pandas.Timedelta(hours=5)).dt.floor("D") + pandas.Timedelta(hours=5)
    groups = table["dep_delay"].isna().groupby(day)
    return pandas.DataFrame({"flights": groups.size(), "cancelled": groups.sum()})


def test_the_flights_of_the_guide_are_counted_by_day_and_drawn(
    code: Code, spark: Spark4, admin_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    assert len(code.run("flights-publish")["table"]) == FLIGHTS
    assert spark.run(code["flights-stream"]) == "0 entries are left\n"
    scope = code.run("flights-plot")
    found, expected = scope["days"].set_index("day"), counted_by_pandas()
    assert len(found) == len(expected) - 1 == 364, "a day comes when a later flight has come"
    assert found.to_dict() == expected.iloc[:-1].to_dict()
    title = scope["axes"].get_title()
    assert title == "A snowstorm cancelled 54% of the flights from New York on 8 and 9 February 2013"
    drawn = (tmp_path / "flights-by-day.png").read_bytes()
    assert drawn.startswith(b"\x89PNG") and len(drawn) < PICTURE_BYTES_MAX
    with urllib.request.urlopen(f"{admin_url}/admin/v2/persistent/public/default/flights-of-2013/stats") as answer:
        assert "spark" in json.load(answer)["subscriptions"]
