"""The command line as far as it goes without a cluster: help, settings, mistakes in one line."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from magnetar.cluster import ray_session
from magnetar.cluster.command_line import app
from magnetar.cluster.planning import parse_settings
from magnetar.protocol.errors import SettingError
from magnetar.protocol.names import VERSION


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MAGNETAR_DATA_DIR", str(tmp_path / "data"))

    def no_ray(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError("a unit test does not start Ray")

    monkeypatch.setattr(ray_session, "join_or_start", no_ray)


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
        (["--port", "99999"], "--port: 99999 is no port"),
        (["--admin-port", "-1"], "--admin-port: -1 is no port"),
        (["--port", "65535"], "--port of broker-2: 65536 is no port"),
        (["--host", "192.0.2.200", "--port", "0"], "this machine does not have the address 192.0.2.200"),
        (["--host", "nowhere.invalid"], "this machine does not have the address nowhere.invalid"),
        (["--data-dir", "/etc/passwd"], "/etc/passwd is no directory"),
        (["--data-dir", "/etc/passwd/below"], "/etc/passwd is no directory"),
        (["--data-dir", "/proc/nothing"], "cannot write to the data directory /proc/nothing"),
        (["--metadata", "nonsense"], "is not the URL of a metadata store"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["start", *arguments])
    assert result.exit_code == 1
    assert complaint in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["status", "stop", "scale --brokers 2", "drain broker-1", "restart", "leave"])
def test_a_file_in_place_of_the_data_directory_is_named_by_every_command(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--data-dir", "/etc/passwd"])
    assert result.exit_code == 1 and len(result.output.strip().splitlines()) == 1
    assert "--data-dir: /etc/passwd is no directory" in result.output


@pytest.mark.parametrize("command", ["", "start", "perf", "perf produce", "admin", "admin topics", "metadata backup"])
def test_help_has_a_short_name_everywhere_and_cuts_nothing(command: str) -> None:
    short, long = (
        CliRunner().invoke(app, [*command.split(), name], env={"COLUMNS": "80"}) for name in ("-h", "--help")
    )
    assert short.exit_code == 0 and short.output == long.output
    assert "…" not in short.output and "--help" in short.output


def test_options_are_whole_in_80_columns() -> None:
    result = CliRunner().invoke(app, ["start", "--help"], env={"COLUMNS": "80"})
    assert "--accept-lost-disk BOOKIE" in result.output and "--metadata-restored" in result.output


def test_the_version_is_an_option_too() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"{VERSION}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("functions list", "Magnetar has no functions, so there is no `magnetar admin functions`"),
        ("sink list", "Magnetar has no Pulsar IO"),
        ("topics offload t", "Magnetar has no tiered storage, so there is no `magnetar admin topics offload`"),
        ("namespaces get-bookie-affinity-group a/b", "Magnetar has no affinity groups"),
        ("namespaces set-replicator-dispatch-rate a/b", "Magnetar has no geo-replication"),
        ("topics nonsense", "No such command 'nonsense'"),
        ("nonsense", "No such command 'nonsense'"),
    ],
)
def test_what_pulsar_admin_has_and_magnetar_has_not_is_named(words: str, message: str) -> None:
    result = CliRunner().invoke(app, ["admin", *words.split()])
    assert result.exit_code == 2 and message in result.output


class NotABroker:
    """Answers everything with the answer of a web server."""

    def __init__(self) -> None:
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self.Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    @property
    def port(self) -> int:
        return self.server.server_address[1]


@pytest.fixture
def not_a_broker() -> Iterator[NotABroker]:
    found = NotABroker()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize("command", ["produce t -m x", "consume t -s s", "perf produce t", "perf consume t"])
@pytest.mark.parametrize(
    "url", ["pulsar://127.0.0.1:{closed}", "pulsar://127.0.0.1:{web}", "pulsar://nowhere.invalid:6650"]
)
def test_a_wrong_service_url_is_told_at_once(command: str, url: str, not_a_broker: NotABroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    filled = url.format(closed=closed, web=not_a_broker.port)
    began = time.monotonic()
    result = CliRunner().invoke(app, [*command.split(), "-u", filled])
    assert time.monotonic() - began < 20, "the client would try for 30 s"
    assert result.exit_code == 1 and len(result.output.strip().splitlines()) == 1
    assert f"no broker answers at {filled}" in result.output and "Check --service-url" in result.output


@pytest.mark.parametrize("command", ["produce t -m x", "consume t -s s", "perf produce t", "perf consume t"])
def test_what_is_no_service_url_is_the_only_line(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "-u", "http://localhost:8080"])
    assert result.exit_code == 1 and len(result.output.strip().splitlines()) == 1
    assert "is not a service URL: it must start with pulsar://" in result.output


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
