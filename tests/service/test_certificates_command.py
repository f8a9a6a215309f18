"""`magnetar certificates create`, and what it prints: the settings start a cluster, and the commands reach it."""

import re
import shlex
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

import magnetar
from magnetar.cluster.certificates import CertificateFiles, create
from magnetar.cluster.command_line import app
from magnetar.cluster.planning import read_settings
from magnetar.cluster.ports import free_ports
from magnetar.protocol.errors import ClusterError
from support.files.certificates import PemPair


def printed_commands(text: str) -> list[list[str]]:
    """The indented lines, joined where they go on, as words."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  ")]


def test_the_settings_and_the_commands_that_it_prints_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    made = runner.invoke(app, ["certificates", "create", str(tmp_path / "my certificates"), "--client", "my-app"])
    assert made.exit_code == 0, made.output
    start, *exports, produce, ask = printed_commands(made.output)
    assert start[:4] == ["magnetar", "start", "--detach", "--config"]
    settings: dict[str, object] = {**read_settings(config=start[4], environment={})}
    assert settings["brokerServicePortTls"] == 6651 and settings["webServicePortTls"] == 8443
    settings["brokerServicePortTls"], settings["webServicePortTls"] = free_ports("127.0.0.1", 2)
    settings["tlsRequireTrustedClientCertOnConnect"] = "true"
    for _, assignment in exports:
        monkeypatch.setenv(*assignment.split("=", 1))
    with magnetar.start(
        embedded=True, brokers=1, bookies=3, port=0, admin_port=0, data_dir=tmp_path / "data", settings=settings
    ):
        for words in (produce, ask):
            given = " ".join(words[1:]).replace(":6651", f":{settings['brokerServicePortTls']}")
            given = given.replace(":8443", f":{settings['webServicePortTls']}")
            done = runner.invoke(app, given.split())
            assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
        assert "persistent://public/default/my-topic" in done.output
        monkeypatch.delenv("MAGNETAR_TLS_TRUST_CERTS_FILE_PATH")
        refused = runner.invoke(app, given.split())
        assert refused.exit_code == 1 and "of a CA that is not trusted here" in refused.output


def remove_all_but_the_ca(made: CertificateFiles) -> None:
    for path in (made.server.certificate, made.server.key, made.client.certificate, made.client.key, made.settings):
        path.unlink()


def test_only_the_user_reads_what_is_written(tmp_path: Path) -> None:
    made = create(tmp_path / "a" / "b", ["localhost"], "client", 1)
    for pair in (made.ca, made.server, made.client):
        for path in (pair.certificate, pair.key, made.settings):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_what_is_there_is_never_overwritten_and_a_ca_goes_on(tmp_path: Path) -> None:
    first = create(tmp_path, ["localhost"], "client", 1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ClusterError, match=r"server\.cert\.pem, .* exist already"):
        create(tmp_path, ["localhost"], "client", 1)
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}
    serial = PemPair(str(first.server.certificate), "").serial
    remove_all_but_the_ca(first)
    second = create(tmp_path, ["localhost"], "client", 1)
    assert not second.ca_is_new and second.ca.key.read_bytes() == before[first.ca.key]
    assert PemPair(str(second.server.certificate), "").serial != serial


@pytest.mark.parametrize("spoil", ["gone", "of another CA", "no PEM"])
def test_a_ca_without_its_key_is_refused(tmp_path: Path, spoil: str) -> None:
    made = create(tmp_path / "a", ["localhost"], "client", 1)
    remove_all_but_the_ca(made)
    if spoil == "gone":
        made.ca.key.unlink()
    elif spoil == "no PEM":
        made.ca.key.write_bytes(b"key")
    else:
        made.ca.key.write_bytes(create(tmp_path / "b", ["localhost"], "client", 1).ca.key.read_bytes())
    with pytest.raises(ClusterError, match="choose another directory"):
        create(tmp_path / "a", ["localhost"], "client", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "größe"], "is no host name"),
        (["--days", "0"], "not between 1 and 3650"),
        (["--client", ""], "cannot be the name of a certificate"),
    ],
)
def test_what_makes_no_certificate_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["certificates", "create", str(tmp_path / "c"), *words])
    assert done.exit_code == 1 and message in done.output and "Traceback" not in done.output
