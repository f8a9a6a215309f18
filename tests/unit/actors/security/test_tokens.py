"""Tokens as credentials: which hold, and why others are refused."""

import base64
import dataclasses
import hmac
from pathlib import Path
from typing import Any

import jwt
import pytest

from magnetar.actors.security.credentials import Credential, Peer
from magnetar.actors.security.tokens import TokenProvider
from magnetar.cluster.token_making import new_key_pair
from magnetar.protocol.errors import AuthenticationError, SettingError
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings

SECRET = b"k" * 32
NOW_S = 1_700_000_000
PEER = Peer("/127.0.0.1:1")


class Clock:
    """A wall clock that stands still."""

    def now_ms(self) -> int:
        return NOW_S * 1000

    def cpu_s(self) -> float:
        return 0.0


async def provider(
    tmp_path: Path, content: bytes = SECRET, name: str = "token_secret_key", **more: Any
) -> TokenProvider:
    file = tmp_path / "key"
    file.write_bytes(content)
    settings = dataclasses.replace(Settings(), **{name: f"file://{file}"}, **more)
    env = dataclasses.replace(Environment.real(1), clock=Clock())
    made = TokenProvider(env, settings)
    await made.start()
    return made


def token(key: bytes = SECRET, algorithm: str = "HS256", **claims: object) -> bytes:
    return jwt.encode({"sub": "alice", **claims}, key, algorithm=algorithm).encode()


async def test_a_token_of_the_key_has_its_role(tmp_path: Path) -> None:
    tokens = await provider(tmp_path)
    assert await tokens.authenticate(token(), PEER) == Credential("alice")
    assert tokens.verify(b"token:" + token(exp=NOW_S + 5)) == Credential("alice", (NOW_S + 5) * 1000)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_a_public_key_verifies_its_own_algorithm_only(tmp_path: Path, algorithm: str) -> None:
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    private, public = new_key_pair(algorithm)
    tokens = await provider(tmp_path, public, "token_public_key", token_public_alg=algorithm)
    key: Any = load_der_private_key(private, None)
    assert tokens.verify(jwt.encode({"sub": "bob"}, key, algorithm).encode()).role == "bob"
    forged = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=") + b".eyJzdWIiOiJib2IifQ."
    # PyJWT does not sign with a public key as a secret, so this is done by hand.
    head, body = (base64.urlsafe_b64encode(text).rstrip(b"=") for text in (b'{"alg":"HS256"}', b'{"sub":"bob"}'))
    mac = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, "sha256")).rstrip(b"=")
    for wrong in (b".".join((head, body, mac)), forged):
        with pytest.raises(AuthenticationError):
            tokens.verify(wrong)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "no token"),
        (b"rubbish", "malformed"),
        (b"\xff\xfe", "malformed"),
        (token(b"x" * 32), "another key"),
        (token(exp=NOW_S), "expired 0 s ago"),
        (token(exp=NOW_S - 9), "expired 9 s ago"),
        (token(nbf=NOW_S + 9), "holds only in 9 s"),
        (token(sub=""), "no role"),
        (token(sub=3), "no role"),
        (jwt.encode({"sub": "a", "exp": "x"}, SECRET).encode(), "no time"),
    ],
)
async def test_others_are_refused_and_no_text_shows_the_token(tmp_path: Path, sent: bytes, reason: str) -> None:
    tokens = await provider(tmp_path)
    with pytest.raises(AuthenticationError, match=reason) as refused:
        await tokens.authenticate(sent, PEER)
    assert len(sent) < 20 or sent.decode() not in str(refused.value)


async def test_the_clocks_may_differ_by_the_skew(tmp_path: Path) -> None:
    tokens = await provider(tmp_path, token_allowed_clock_skew_s=10)
    assert tokens.verify(token(exp=NOW_S - 9)).expires_at_ms == (NOW_S + 1) * 1000
    assert tokens.verify(token(nbf=NOW_S + 9)).role == "alice"
    with pytest.raises(AuthenticationError):
        tokens.verify(token(exp=NOW_S - 10))


async def test_a_token_is_for_its_audience_and_its_claim_has_the_role(tmp_path: Path) -> None:
    tokens = await provider(tmp_path, token_audience_claim="aud", token_audience="orders", token_auth_claim="client_id")
    assert tokens.verify(token(aud="orders", client_id="c")).role == "c"
    assert tokens.verify(token(aud=["others", "orders"], client_id="c")).role == "c"
    for claims in ({}, {"aud": "others"}, {"aud": []}):
        with pytest.raises(AuthenticationError, match="not for orders"):
            tokens.verify(token(client_id="c", **claims))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "needs tokenSecretKey or tokenPublicKey"),
        ({"token_secret_key": "data:;base64,aaaa"}, "must name a file"),
        ({"token_secret_key": "relative"}, "absolute path"),
        ({"token_secret_key": "/nowhere/key"}, "cannot be read"),
        ({"token_public_key": "/etc/hostname"}, "no public key"),
    ],
)
async def test_a_key_that_cannot_be_used_is_told_at_the_start(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        await TokenProvider(Environment.real(1), dataclasses.replace(Settings(), **settings)).start()


async def test_a_longer_secret_takes_longer_hashes(tmp_path: Path) -> None:
    tokens = await provider(tmp_path, b"k" * 64)
    assert tokens.verify(token(b"k" * 64, "HS512")).role == "alice"
    with pytest.raises(AuthenticationError, match="not signed with HS256"):
        (await provider(tmp_path, SECRET)).verify(token(b"k" * 64, "HS512"))


async def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has 5 bytes"):
        await provider(tmp_path, b"short")
