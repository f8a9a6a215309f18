"""`magnetar settings`: for people, for pipes, for programs, and of a running cluster."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from magnetar.cluster import settings_command
from magnetar.cluster.command_line import app
from magnetar.cluster.settings_command import print_settings, views
from magnetar.cluster.terminal.addresses import Finder, admin_url_of


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MAGNETAR_DATA_DIR", str(tmp_path / "data"))


def test_outside_of_a_terminal_each_setting_is_one_line() -> None:
    result = CliRunner().invoke(app, ["settings"], env={"COLUMNS": "80"})
    rows = {row.split("\t")[0]: row.split("\t") for row in result.output.splitlines()}
    assert len(rows) == len(views((), None)) > 100
    assert all(len(row) == 5 for row in rows.values())
    assert rows["gcWaitTime"][1:4] == ["900000", "ms", "bookkeeper"]
    assert rows["journalSyncData"][1] == "true", "as --set takes it"


def test_a_terminal_of_80_columns_shows_names_and_meanings_whole() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_settings(console, views(["replicationRateByBytes"], None))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.startswith("replicationRateByBytes = ")
    meaning = " ".join(text.splitlines()[1:]).split()
    assert " ".join(meaning) == views(["replicationRateByBytes"], None)[0]["meaning"]
    assert all(len(row) <= 80 for row in text.splitlines())


@pytest.mark.parametrize(
    ("words", "some", "other"), [(["RETENTION", "size"], "defaultRetentionSizeInMB", "gcWaitTime")]
)
def test_words_choose_by_name_and_meaning(words: list[str], some: str, other: str) -> None:
    names = CliRunner().invoke(app, ["settings", *words]).output
    assert some in names and other not in names


def test_words_that_nothing_has_are_an_error() -> None:
    result = CliRunner().invoke(app, ["settings", "no-such-thing"])
    assert result.exit_code == 1 and "no setting has 'no-such-thing'" in result.output


def test_json_has_every_part() -> None:
    found = json.loads(CliRunner().invoke(app, ["settings", "--json", "maxMessageSize"]).output)
    assert found[0]["name"] == "maxMessageSize" and found[0]["value"] == found[0]["default"] == 5242880


def test_the_running_cluster_shows_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(finder: Finder, admin_url: str | None) -> dict[str, str]:
        asked.append(admin_url_of(finder, admin_url))
        return {"maxMessageSize": "1048576"}

    monkeypatch.setattr(settings_command, "running_values", answer)
    arguments = ["settings", "--running", "--admin-url", "http://localhost:8080/", "maxMessageSize", "--json"]
    found = {one["name"]: one for one in json.loads(CliRunner().invoke(app, arguments).output)}
    assert asked == ["http://localhost:8080"]
    assert found["maxMessageSize"]["value"] == "1048576" and found["maxMessageSize"]["default"] == 5242880
    console = Console(file=io.StringIO(), width=80)
    print_settings(console, views(["maxMessageSize"], {"maxMessageSize": "1048576"}))
    assert isinstance(console.file, io.StringIO)
    assert "maxMessageSize = 1048576  (bytes, pulsar, by default 5242880)" in console.file.getvalue()


def test_without_a_running_cluster_its_settings_are_one_clear_line() -> None:
    result = CliRunner().invoke(app, ["settings", "--running"])
    assert result.exit_code == 1 and len(result.output.strip().splitlines()) == 1
    assert "no running cluster was found" in result.output
