"""How a process authenticates to a Ray that it joins, and where the token of a Ray of ours lies."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cluster import ray_authentication
from magnetar.protocol.errors import ClusterError


class Ray:
    """A GCS that asks for `token`, or for none, and a home with `home_token`, or without one."""

    def __init__(self, address: str, token: str | None, home_token: str | None) -> None:
        self.address = address
        self.asked = 0
        self._token = token
        self._home_token = home_token

    def has_token(self, ignore_auth_mode: bool) -> bool:
        return self._found() is not None

    def reset_cache(self) -> None:
        pass

    def accepts(self, address: str) -> bool:
        assert address == self.address
        self.asked += 1
        sent = self._found() if os.environ.get("RAY_AUTH_MODE") == "token" else None
        return self._token is None or self._token == sent

    def _found(self) -> str | None:
        if "RAY_AUTH_TOKEN_PATH" in os.environ:
            return Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        return os.environ.get("RAY_AUTH_TOKEN", self._home_token)


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a port on which something listens. No token is set in the environment."""
    for name in ray_authentication.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_authentication, "_reload", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    ray_authentication.forget()


@pytest.fixture
def ray(listening: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Ray:
    found = Ray(listening, *request.param)
    monkeypatch.setattr(ray_authentication, "_loader", lambda: found)
    monkeypatch.setattr(ray_authentication, "_accepts", found.accepts)
    return found


@pytest.mark.parametrize("ray", [(None, None), (None, "mine")], indirect=True)
def test_a_ray_without_tokens_is_joined_as_it_is(ray: Ray) -> None:
    ray_authentication.authenticate(ray.address)
    assert ray.asked == 1 and ray_authentication.how_to_authenticate() == ""


@pytest.mark.parametrize("ray", [("mine", "mine")], indirect=True)
def test_a_ray_that_asks_for_a_token_gets_the_one_of_the_home(ray: Ray) -> None:
    ray_authentication.authenticate(ray.address)
    assert ray_authentication.how_to_authenticate() == " RAY_AUTH_MODE=token"
    ray_authentication.forget()
    assert "RAY_AUTH_MODE" not in os.environ


@pytest.mark.parametrize(
    ("ray", "environment", "message"),
    [
        (("mine", None), {}, "asks for a token, and there is none"),
        (("mine", "other"), {}, "refuses the token in ~/.ray/auth_token"),
        (("mine", None), {"RAY_AUTH_MODE": "token"}, "RAY_AUTH_MODE=token is set, but there is no token"),
        (("mine", None), {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "o"}, "refuses the token in RAY_AUTH_TOKEN:"),
        (("mine", "mine"), {"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=disabled is set: unset it"),
        (("mine", None), {"RAY_AUTH_TOKEN_PATH": "/nowhere"}, "RAY_AUTH_TOKEN_PATH=/nowhere cannot be read"),
    ],
    indirect=["ray"],
)
def test_a_ray_that_refuses_says_what_to_set(
    ray: Ray, environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match=message):
        ray_authentication.authenticate(ray.address)
    assert {name: os.environ[name] for name in ray_authentication.VARIABLES if name in os.environ} == environment


def test_where_nothing_listens_no_ray_is_asked(listening: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClusterError, match=f"no Ray answers at 127.0.0.1:{port} "):
        ray_authentication.authenticate(f"127.0.0.1:{port}")


def test_the_token_of_our_ray_lies_in_the_data_directory(listening: str, tmp_path: Path) -> None:
    path = Path(ray_authentication.own_token(tmp_path))
    assert path.parent == tmp_path and path.stat().st_mode & 0o777 == 0o600
    token = path.read_text()
    assert len(token) == 64 and ray_authentication.own_token(tmp_path) == str(path) and path.read_text() == token
    ray_authentication.use_token(str(path))
    assert (
        ray_authentication.how_to_authenticate()
        == f" RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={tmp_path}/ray-auth-token"
    )


def test_a_file_that_a_crash_left_empty_gets_a_token(listening: str, tmp_path: Path) -> None:
    (tmp_path / ray_authentication.OWN_TOKEN).touch(0o600)
    assert len(Path(ray_authentication.own_token(tmp_path)).read_text()) == 64


@pytest.mark.parametrize(
    "chosen", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "x"}, {"RAY_AUTH_TOKEN_PATH": "/x"}]
)
def test_what_the_user_has_chosen_for_our_ray_is_left_alone(
    listening: str, tmp_path: Path, chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert ray_authentication.own_token(tmp_path) == "" and not list(tmp_path.iterdir())


def test_a_secret_of_the_environment_is_not_printed(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert "secret" not in ray_authentication.how_to_authenticate()
