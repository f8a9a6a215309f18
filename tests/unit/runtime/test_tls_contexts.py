"""The contexts of TLS: what makes one, what makes the next one, and which files are refused."""

import asyncio
import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from magnetar.protocol.errors import SettingError
from magnetar.runtime import tls_contexts
from magnetar.runtime.environment import Environment
from magnetar.runtime.tls_contexts import (
    BadTlsFiles,
    ClientContexts,
    ClientTls,
    ServerContexts,
    ServerTls,
    client_context,
    openssl_ciphers,
    tls_of_process,
)
from support.files.certificates import PemPair, TestAuthority, read, write


@pytest.fixture
def env():
    made = Environment.real(1)
    yield made
    made.close()


class SettableClock:
    """A clock that a test moves."""

    def __init__(self, now_ms: int) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def cpu_s(self) -> float:
        return 0.0


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path)


def server_tls(pair: PemPair, trust: str = "", **changes: object) -> ServerTls:
    made = ServerTls(pair.certificate, pair.key, trust, False, ("TLSv1.3", "TLSv1.2"), "", 300.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """A handshake in memory; returns the client's side. Raises ssl.SSLError of either side."""
    return both_sides(server, client)[0]


def both_sides(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> list[ssl.SSLObject]:
    """Those of a handshake, the client's first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
        if not waiting:
            return sides
    raise AssertionError("the handshake does not end")


def serial_of(client: ssl.SSLObject) -> int:
    shown = client.getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


async def test_a_context_shows_the_certificate_with_safe_versions_only(env, authority):
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair))
    await contexts.open()
    assert contexts.current.minimum_version is ssl.TLSVersion.TLSv1_2
    assert contexts.current.maximum_version is ssl.TLSVersion.TLSv1_3
    assert contexts.current.verify_mode is ssl.CERT_NONE, "without trusted CAs nobody is asked"
    client = client_context(ClientTls(authority.path))
    assert serial_of(shake_hands(contexts.current, client)) == pair.serial
    for options in (ssl.OP_NO_TICKET, ssl.OP_NO_RENEGOTIATION):
        assert contexts.current.options & options


@pytest.mark.parametrize(
    ("allowed", "offered", "agreed"),
    [
        (("TLSv1.2",), ssl.TLSVersion.TLSv1_3, "TLSv1.2"),
        (("TLSv1.3",), ssl.TLSVersion.TLSv1_3, "TLSv1.3"),
        (("TLSv1.3",), ssl.TLSVersion.TLSv1_2, None),
    ],
)
async def test_only_the_named_versions_are_spoken(env, authority, allowed, offered, agreed):
    contexts = ServerContexts(env, server_tls(authority.issue("server"), versions=allowed))
    await contexts.open()
    client = client_context(ClientTls(authority.path))
    client.maximum_version = offered
    if agreed is None:
        with pytest.raises(ssl.SSLError):
            shake_hands(contexts.current, client)
    else:
        assert shake_hands(contexts.current, client).version() == agreed


@pytest.mark.promise("30.28")
async def test_a_replaced_certificate_counts_for_the_next_connection(env, authority, caplog):
    caplog.set_level(logging.INFO)
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair))
    await contexts.open()
    first, client = contexts.current, client_context(ClientTls(authority.path))
    assert not await contexts.refresh() and contexts.current is first, "nothing has changed"
    old = pair.serial
    pair.replace_by(authority.issue("next"))
    assert await contexts.refresh()
    assert serial_of(shake_hands(contexts.current, client)) == pair.serial != old
    assert serial_of(shake_hands(first, client)) == old, "who has the old context keeps it"
    assert "new connections get the new certificate" in caplog.text


@pytest.mark.promise("30.28")
async def test_a_replaced_list_of_trusted_cas_counts_too(env, authority, tmp_path):
    other = TestAuthority(tmp_path, "other")
    trust = tmp_path / "trust.pem"
    write(str(trust), read(authority.path))
    contexts = ServerContexts(env, server_tls(authority.issue("server"), str(trust), client_required=True))
    await contexts.open()
    ours, theirs = authority.issue("ours", ()), other.issue("theirs", ())
    clients = [client_context(ClientTls(authority.path, one.certificate, one.key)) for one in (ours, theirs)]
    shake_hands(contexts.current, clients[0])
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts.current, clients[1])
    write(str(trust), read(other.path))
    assert await contexts.refresh()
    shake_hands(contexts.current, clients[1])
    with pytest.raises(ssl.SSLError):
        shake_hands(contexts.current, clients[0])


async def test_a_session_is_not_resumed_behind_a_change(env, authority):
    """Else a client whose CA is trusted no longer would come in with what it kept."""
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair))
    await contexts.open()
    client = client_context(ClientTls(authority.path))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    sides = both_sides(contexts.current, client)  # OpenSSL forgets the session of a side that is gone
    again = both_sides(contexts.current, client, sides[0].session)
    assert again[0].session_reused, "what a change is to prevent"
    pair.replace_by(authority.issue("next"))
    assert await contexts.refresh()
    assert not both_sides(contexts.current, client, sides[0].session)[0].session_reused


@pytest.mark.parametrize("required", [True, False])
async def test_clients_show_a_trusted_certificate_or_none_if_none_is_required(env, authority, tmp_path, required):
    contexts = ServerContexts(env, server_tls(authority.issue("server"), authority.path, client_required=required))
    await contexts.open()
    mine = authority.issue("mine", ())
    shake_hands(contexts.current, client_context(ClientTls(authority.path, mine.certificate, mine.key)))
    if required:
        with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            shake_hands(contexts.current, client_context(ClientTls(authority.path)))
    else:
        shake_hands(contexts.current, client_context(ClientTls(authority.path)))
    stranger = TestAuthority(tmp_path, "stranger").issue("stranger", ())
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(contexts.current, client_context(ClientTls(authority.path, stranger.certificate, stranger.key)))


def spoil(pair: PemPair, authority: TestAuthority, how: str) -> None:
    if how == "gone":
        Path(pair.certificate).unlink()
    elif how == "cut off":
        write(pair.certificate, read(pair.certificate)[:100])
    elif how == "empty":
        write(pair.key, b"")
    elif how == "of another key":
        write(pair.certificate, read(authority.issue("another").certificate))
    elif how == "encrypted":
        key = serialization.load_pem_private_key(read(pair.key), None)
        encryption = serialization.BestAvailableEncryption(b"secret")
        text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        write(pair.key, text)
    else:
        write(pair.certificate, b"x" * (tls_contexts.FILE_MAX_BYTES + 1))


SPOILED = {
    "gone": "No such file",
    "cut off": "cannot be used",
    "empty": "cannot be used",
    "of another key": "the key belongs to another certificate",
    "encrypted": "is encrypted",
    "huge": "too many",
}


@pytest.mark.parametrize("how", SPOILED)
async def test_files_that_make_no_context_end_the_start_with_the_reason(env, authority, how):
    pair = authority.issue("server")
    spoil(pair, authority, how)
    with pytest.raises(SettingError, match=SPOILED[how]) as refused:
        await ServerContexts(env, server_tls(pair)).open()
    assert "server." in str(refused.value), "the file is named"


@pytest.mark.parametrize("how", SPOILED)
async def test_bad_new_files_are_logged_as_an_error_and_the_old_ones_stay(env, authority, caplog, how):
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair))
    await contexts.open()
    before = contexts.current
    kept = [(path, read(path)) for path in (pair.certificate, pair.key)]
    spoil(pair, authority, how)
    assert not await contexts.refresh() and contexts.current is before
    assert not await contexts.refresh()
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert SPOILED[how] in line.message and "the old certificate stays" in line.message
    for path, data in kept:
        write(path, data)
    await contexts.refresh()
    pair.replace_by(authority.issue("next"))
    assert await contexts.refresh() and contexts.current is not before, "a good one is taken then"


async def test_an_expired_certificate_replaces_no_valid_one(env, authority, caplog):
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair))
    await contexts.open()
    before = contexts.current
    pair.replace_by(authority.issue("old", days=-1))
    assert not await contexts.refresh() and contexts.current is before
    assert "has expired: write a valid one" in caplog.text
    caplog.clear()
    await ServerContexts(env, server_tls(pair)).open()
    assert "has expired: clients refuse it" in caplog.text, "a start goes on: it may be mended meanwhile"


async def test_a_certificate_that_expires_soon_is_told_of_once_a_day(env, authority, caplog):
    clock = SettableClock(env.clock.now_ms())
    contexts = ServerContexts(replace(env, clock=clock), server_tls(authority.issue("server", days=10)))
    await contexts.open()
    assert not caplog.records
    for hours, level in [(3 * 24 + 1, logging.WARNING), (1, None), (23, logging.WARNING), (6 * 24, logging.ERROR)]:
        caplog.clear()
        clock.now += hours * 3_600_000
        contexts._tell_of_expiry()
        assert [one.levelno for one in caplog.records] == ([level] if level is not None else []), hours
    assert "has expired: clients refuse it" in caplog.text


async def test_the_files_are_looked_at_again_by_themselves(env, authority, monkeypatch):
    monkeypatch.setattr(tls_contexts, "AGAIN_S", 0.01)
    pair = authority.issue("server")
    contexts = ServerContexts(env, server_tls(pair, refresh_s=0.01))
    await contexts.open()
    before = contexts.current
    running = asyncio.create_task(contexts.run())
    spoil(pair, authority, "gone")
    pair.replace_by(authority.issue("next"))
    async with asyncio.timeout(20):
        while contexts.current is before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()


async def test_a_client_takes_new_files_for_its_next_connection(env, authority, tmp_path):
    mine = authority.issue("mine", ())
    contexts = ClientContexts(env, ClientTls(authority.path, mine.certificate, mine.key))
    first = await contexts.newest()
    assert await contexts.newest() is first
    mine.replace_by(authority.issue("next", ()))
    assert await contexts.newest() is not first
    with pytest.raises(BadTlsFiles, match=r"missing\.pem cannot be read: No such file"):
        await ClientContexts(env, ClientTls(str(tmp_path / "missing.pem"))).newest()


def test_a_client_checks_what_it_is_told_to_check(authority, tmp_path):
    checked = client_context(ClientTls(authority.path))
    assert checked.check_hostname and checked.verify_mode is ssl.CERT_REQUIRED
    by_ca = client_context(ClientTls(authority.path, host_name_checked=False))
    assert not by_ca.check_hostname and by_ca.verify_mode is ssl.CERT_REQUIRED
    insecure = client_context(ClientTls(insecure=True))
    assert not insecure.check_hostname and insecure.verify_mode is ssl.CERT_NONE


def test_what_is_not_given_comes_from_the_variables_of_the_process():
    variables = {
        "MAGNETAR_TLS_TRUST_CERTS_FILE_PATH": "ca",
        "MAGNETAR_TLS_CERTIFICATE_FILE_PATH": "cert",
        "MAGNETAR_TLS_PRIVATE_KEY_FILE_PATH": "key",
    }
    assert tls_of_process(ClientTls(), variables) == ClientTls("ca", "cert", "key")
    assert tls_of_process(ClientTls(), {}) == ClientTls()
    given = ClientTls("mine", "my-cert", "my-key", insecure=True, host_name_checked=False)
    assert tls_of_process(given, variables) == given
    assert tls_of_process(ClientTls("mine"), variables) == ClientTls("mine", "cert", "key")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256, ECDHE-RSA-AES128-GCM-SHA256", None),
        ("TLS_AES_256_GCM_SHA384", ""),
    ],
)
def test_cipher_suites_have_names_of_iana_and_of_openssl(names, found):
    assert openssl_ciphers(names) == ("ECDHE-RSA-AES128-SHA256:ECDHE-RSA-AES128-GCM-SHA256" if found is None else found)


@pytest.mark.parametrize("names", ["TLS_NOTHING", "aNULL", "ECDHE-RSA-AES256-GCM-SHA384:ALL", "@SECLEVEL=0"])
def test_other_words_are_no_cipher_suites(names):
    with pytest.raises(ValueError, match="which this OpenSSL does not have"):
        openssl_ciphers(names)
