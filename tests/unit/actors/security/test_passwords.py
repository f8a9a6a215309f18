"""Names and passwords out of a file of `htpasswd`."""

import dataclasses
from pathlib import Path

import pytest
from passlib.context import CryptContext

from magnetar.actors.security import passwords
from magnetar.actors.security.credentials import Credential, Peer
from magnetar.actors.security.passwords import PasswordProvider, basic_header, hashes_of
from magnetar.protocol.errors import AuthenticationError, ServiceUnitNotReady, SettingError
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings

PEER = Peer("/127.0.0.1:1")


def line(name: str, password: str, scheme: str) -> str:
    return f"{name}:{CryptContext([scheme]).hash(password)}\n"


async def provider(file: Path) -> PasswordProvider:
    made = PasswordProvider(Environment.real(1), dataclasses.replace(Settings(), basic_auth_conf=str(file)))
    await made.start()
    return made


async def test_each_kind_of_hash_takes_its_password_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("".join(line(scheme, "right", scheme) for scheme in ("bcrypt", "apr_md5_crypt", "ldap_sha1")))
    found = await provider(file)
    for name in ("bcrypt", "apr_md5_crypt", "ldap_sha1"):
        assert await found.authenticate(f"{name}:right".encode(), PEER) == Credential(name)
        for sent in (f"{name}:wrong", f"{name}:", f"x{name}:right"):
            with pytest.raises(AuthenticationError, match="the name or the password is wrong"):
                await found.authenticate(sent.encode(), PEER)
    for sent in (b"bcrypt:" + b"x" * 100, b"bcrypt:\0", b"\xff:\xff"):
        with pytest.raises(AuthenticationError):
            await found.authenticate(sent, PEER)
    with pytest.raises(AuthenticationError, match="no name:password"):
        await found.authenticate(b"bcrypt", PEER)


def test_a_line_without_a_hash_counts_for_nobody() -> None:
    assert hashes_of("# comment\n\nplain:secret\nnothing\n:x\n") == {}


async def test_a_changed_file_counts_and_a_lost_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "LOOK_S", 0.0)
    file = tmp_path / "users"
    file.write_text(line("a", "one", "ldap_sha1"))
    found = await provider(file)
    file.write_text(line("a", "two", "ldap_sha1"))
    assert (await found.authenticate(b"a:two", PEER)).role == "a"
    with pytest.raises(AuthenticationError):
        await found.authenticate(b"a:one", PEER)
    file.unlink()
    assert (await found.authenticate(b"a:two", PEER)).role == "a"


async def test_too_many_checks_at_a_time_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users"
    file.write_text(line("a", "one", "ldap_sha1"))
    found = await provider(file)
    monkeypatch.setattr(passwords, "CHECKS_WAITING_MAX", 0)
    with pytest.raises(ServiceUnitNotReady, match="too many"):
        await found.authenticate(b"a:one", PEER)


async def test_a_right_password_is_known_without_a_hash_and_a_client_that_left_costs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    file.write_text(line("a", "one", "ldap_sha1") + line("b", "two", "bcrypt"))
    found = await provider(file)
    assert found._decoy.startswith("$2"), "a name that nobody has takes as long as the dearest hash"
    assert (await found.authenticate(b"a:one", PEER)).role == "a"
    monkeypatch.setattr(passwords, "_verify", lambda *given: pytest.fail("a hash is computed"))
    assert (await found.authenticate(b"a:one", PEER)).role == "a"
    with pytest.raises(AuthenticationError, match="has left"):
        await found.authenticate(b"a:two", Peer("/127.0.0.1:1", None, lambda: True))


@pytest.mark.parametrize("content", [None, "", "plain:secret\n"])
async def test_a_file_without_users_is_told_at_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "users"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingError):
        await provider(file)


def test_a_header_has_base64() -> None:
    assert basic_header("YTpi") == b"a:b"
    with pytest.raises(AuthenticationError):
        basic_header("%%%")
