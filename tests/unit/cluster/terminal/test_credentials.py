"""What an operator gives to prove who he is, for clients and for the admin."""

import base64
from pathlib import Path

import pytest

from magnetar.client.core.authentication import AuthenticationBasic, AuthenticationTLS
from magnetar.client.core.ray_credentials import RayAuthentication
from magnetar.cluster.terminal.credentials import NO_CREDENTIAL, GivenCredential
from magnetar.protocol.errors import ClusterError, MagnetarError

JAVA = "org.apache.pulsar.client.impl.auth.Authentication"


def test_nothing_is_needed_where_the_cluster_is_found_through_ray() -> None:
    assert isinstance(NO_CREDENTIAL.authentication(through_ray=True), RayAuthentication)
    assert NO_CREDENTIAL.authentication(through_ray=False) is None
    assert NO_CREDENTIAL.headers(through_ray=False) == {}


async def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for given in (
        GivenCredential(token_file=str(file)),
        GivenCredential(plugin="token", params=f"file://{file}"),
        GivenCredential(plugin=f"{JAVA}Token", params=f"file:{file}"),
    ):
        for token in ("one", "two\n"):
            file.write_text(token)
            assert given.headers(through_ray=True) == {"Authorization": f"Bearer {token.strip()}"}
            found = given.authentication(through_ray=False)
            assert found is not None and await found.credential() == ("token", token.strip().encode())
    file.unlink()
    with pytest.raises(ClusterError, match="cannot be read"):
        GivenCredential(token_file=str(file)).headers(through_ray=False)


def test_pulsars_parameters_are_taken() -> None:
    for params in ("token:abc", "abc"):
        assert GivenCredential(params=params).headers(through_ray=False) == {"Authorization": "Bearer abc"}
    basic = GivenCredential(plugin=f"{JAVA}Basic", params='{"userId": "a", "password": "b"}')
    assert isinstance(basic.authentication(through_ray=False), AuthenticationBasic)
    assert basic.headers(through_ray=False) == {"Authorization": f"Basic {base64.b64encode(b'a:b').decode()}"}
    tls = GivenCredential(plugin="tls", params="tlsCertFile:/c.pem,tlsKeyFile:/k.pem")
    found = tls.authentication(through_ray=False)
    assert isinstance(found, AuthenticationTLS) and (found.certificate_path, found.private_key_path) == (
        "/c.pem",
        "/k.pem",
    )
    assert tls.headers(through_ray=False) == {}, "the certificate is shown by TLS"


@pytest.mark.parametrize(
    "given",
    [
        GivenCredential(plugin="athenz", params="x"),
        GivenCredential(plugin="basic", params="x"),
        GivenCredential(plugin="basic", params="[]"),
        GivenCredential(plugin="basic", params="{}"),
        GivenCredential(plugin="token"),
    ],
)
def test_a_mistake_is_told_and_shows_no_secret(given: GivenCredential) -> None:
    with pytest.raises(MagnetarError):
        given.authentication(through_ray=False)
    assert "secret" not in repr(GivenCredential(params="secret"))
