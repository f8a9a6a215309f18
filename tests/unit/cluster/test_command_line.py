"""The command line as far as it goes without a cluster: help, settings, mistakes in one line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from magnetar.cluster.command_line import app
from magnetar.cluster.planning import parse_settings
from magnetar.protocol.errors import SettingError


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MAGNETAR_DATA_DIR", str(tmp_path / "data"))


def test_help_names_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in ("start", "status", "stop", "settings"):
        assert command in result.output


def test_help_of_start_has_every_option() -> None:
    result = CliRunner().invoke(app, ["start", "--help"], env={"COLUMNS": "200"})
    for option in (
        "--brokers", "--bookies", "--data-dir", "--host", "--port", "--admin-port", "--ensemble", "--set", "--config",
        "--metadata", "--accept-lost-disk", "--metadata-restored", "--detach",
    ):  # fmt: skip
        assert option in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "maxMesageSize=1"], "maxMessageSize"),
        (["--set", "maxMessageSize"], "NAME=VALUE"),
        (["--ensemble", "3"], "3/3/2"),
        (["--bookies", "1"], "too few for an ack quorum"),
        (["--config", "/nowhere/magnetar.conf"], "/nowhere/magnetar.conf"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["start", *arguments])
    assert result.exit_code == 1
    assert complaint in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("shell", "command"), [("bash", "complete -o default"), ("zsh", "compdef")])
def test_completion_scripts_exist_for_bash_and_zsh(shell: str, command: str) -> None:
    result = CliRunner().invoke(app, [], prog_name="magnetar", env={"_MAGNETAR_COMPLETE": f"source_{shell}"})
    assert command in result.output and "_MAGNETAR_COMPLETE" in result.output


def test_status_without_a_cluster_says_how_to_start_one() -> None:
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 1
    assert "magnetar start --detach" in " ".join(result.output.split())


def test_settings_are_pairs() -> None:
    assert parse_settings(["a=1", " b = x=y "]) == {"a": "1", "b": "x=y"}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(SettingError):
            parse_settings(wrong)
