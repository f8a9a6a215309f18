"""Who is at the other end: methods, the anonymous role, and proxies."""

import dataclasses
from typing import Any

import pytest

from magnetar.actors.security.authentication import ClientAuthentication, Proof
from magnetar.actors.security.certificates import CertificateProvider
from magnetar.actors.security.credentials import DATA_MAX_BYTES, NOBODY, Credential, Peer, Principal
from magnetar.protocol.errors import AuthenticationError, AuthorizationError, SettingError
from magnetar.protocol.pulsar_pb2 import AuthMethodAthens, CommandConnect
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings

PEER = Peer("/127.0.0.1:1")


class Named:
    """Takes a role as its own proof."""

    method = "named"

    def __init__(self, env: Environment, settings: Settings) -> None:
        pass

    async def start(self) -> None:
        pass

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        if data == b"refused":
            raise AuthenticationError("the first refusal")
        return Credential(data.decode())


class Lenient(Named):
    """A second provider of the same method."""

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        if data == b"bad":
            raise ValueError("a defect")
        return Credential("second")


class Broken(Named):
    method = "broken"

    async def authenticate(self, data: bytes, peer: Peer) -> Credential:
        raise ValueError("a defect")


def made(providers: str = f"{__name__}:Named", **changes: Any) -> ClientAuthentication:
    settings = dataclasses.replace(
        Settings(), authentication_enabled=True, authentication_providers=providers, **changes
    )
    return ClientAuthentication(Environment.real(1), settings)


def connect(role: str, **fields: Any) -> CommandConnect:
    return CommandConnect(auth_method_name="named", auth_data=role.encode(), **fields)


async def test_without_authentication_nobody_is_asked() -> None:
    found = await ClientAuthentication(Environment.real(1), Settings()).connect(connect("a"), PEER)
    assert found.principal == NOBODY


@pytest.mark.promise("30.29")
async def test_a_class_of_ones_own_says_who_it_is() -> None:
    found = await made().connect(connect("alice"), PEER)
    assert found.principal == Principal("alice") and found.own == Credential("alice")


@pytest.mark.parametrize(
    "sent", [CommandConnect(), CommandConnect(auth_method_name="other"), CommandConnect(auth_method=AuthMethodAthens)]
)
async def test_a_method_that_nobody_has_is_the_anonymous_role_or_refused(sent: CommandConnect) -> None:
    with pytest.raises(AuthenticationError, match="this cluster takes named"):
        await made().connect(sent, PEER)
    assert (await made(anonymous_user_role="guest").connect(sent, PEER)).principal == Principal("guest")


async def test_a_wrong_credential_is_not_anonymous() -> None:
    with pytest.raises(AuthenticationError, match="the first refusal"):
        await made(anonymous_user_role="guest").connect(connect("refused"), PEER)
    with pytest.raises(AuthenticationError, match="no role"):
        await made().connect(connect(""), PEER)


async def test_of_several_providers_the_first_that_accepts_counts() -> None:
    both = made(f"{__name__}:Named,{__name__}:Lenient")
    assert (await both.verify(Proof("named", b"first"), PEER)).role == "first"
    assert (await both.verify(Proof("named", b"refused"), PEER)).role == "second"


async def test_a_defect_of_a_provider_lets_nobody_in() -> None:
    with pytest.raises(AuthenticationError, match="cannot be checked: ValueError"):
        await made(f"{__name__}:Broken").verify(Proof("broken", b"x"), PEER)


async def test_a_large_credential_is_not_read() -> None:
    with pytest.raises(AuthenticationError, match="at most"):
        await made().verify(Proof("named", bytes(DATA_MAX_BYTES + 1)), PEER)


@pytest.mark.parametrize(
    ("role", "named", "expected"),
    [
        ("alice", "", Principal("alice")),
        ("alice", "alice", Principal("alice")),
        ("proxy", "alice", Principal("proxy", "alice")),
        ("alice", "bob", None),
        ("alice", "proxy", None),
        ("proxy", "", None),
        ("proxy", "proxy", None),
        ("proxy", "gate", None),
    ],
)
async def test_only_a_proxy_names_its_clients_role(role: str, named: str, expected: Principal | None) -> None:
    authentication = made(proxy_roles="proxy,gate")
    sent = connect(role, original_principal=named)
    if expected is not None:
        assert (await authentication.connect(sent, PEER)).principal == expected
        return
    with pytest.raises(AuthorizationError):
        await authentication.connect(sent, PEER)


async def test_the_credential_of_a_proxys_client_is_checked_if_that_is_wanted() -> None:
    original = {"original_auth_data": "alice", "original_auth_method": "named"}
    believed = await made(proxy_roles="proxy").connect(connect("proxy", original_principal="bob", **original), PEER)
    assert believed.principal == Principal("proxy", "bob") and believed.original is None
    strict = made(proxy_roles="proxy", authenticate_original_auth_data=True)
    assert (await strict.connect(connect("proxy", **original), PEER)).original == Credential("alice")
    for fields in (
        {"original_principal": "bob", **original},
        {**original, "original_auth_data": "refused"},
        {"original_principal": "alice"},
    ):
        with pytest.raises(AuthenticationError):
            await strict.connect(connect("proxy", **fields), PEER)


async def test_a_certificate_has_its_common_name_as_role() -> None:
    provider = CertificateProvider(Environment.real(1), Settings())
    subject = ((("organizationName", "o"),), (("commonName", "alice"),))
    assert await provider.authenticate(b"", Peer("/a", {"subject": subject})) == Credential("alice")
    for wrong in (None, {}, {"subject": subject[:1]}, {"subject": (*subject, (("commonName", "bob"),))}):
        with pytest.raises(AuthenticationError):
            await provider.authenticate(b"", Peer("/a", wrong))


@pytest.mark.parametrize(
    ("providers", "reason"),
    [("oauth", "is unknown"), ("no.such:Thing", "cannot be imported"), (f"{__name__}:PEER", "is no class")],
)
def test_a_provider_that_is_not_there_is_told(providers: str, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        made(providers)


def test_pulsars_classes_are_known_by_their_names() -> None:
    names = [
        f"org.apache.pulsar.broker.authentication.AuthenticationProvider{one}" for one in ("Token", "Basic", "Tls")
    ]
    assert made(",".join(names)).methods == ["token", "basic", "tls"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"authentication_enabled": True}, "authenticationProviders"),
        ({"authorization_enabled": True}, "needs authenticationEnabled"),
        ({"token_audience": "x"}, "go together"),
        ({"anonymous_user_role": "p", "proxy_roles": "p"}, "must not be one of proxyRoles"),
        ({"anonymous_user_role": "p", "super_user_roles": "p"}, "anybody could do everything"),
        ({"proxy_roles": "ray"}, "rayClientRole must not"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        dataclasses.replace(Settings(), **changes)
