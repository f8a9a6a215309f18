"""Who asks the admin HTTP, and with what: a token of Ray goes only where Ray said that the admin is."""

import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import ray

from magnetar.bulk import access
from magnetar.bulk.access import AdminOfRay, ask_admin, ask_of_topic
from magnetar.runtime.token_file import VARIABLE

Shown = tuple[str | None, str | None]


class Admin:
    """An admin HTTP that notes the path and the credential of each request."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.shown: list[Shown] = []
        noted = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                noted.paths.append(self.path)
                noted.shown.append((self.headers["Authorization"], self.headers["X-Pulsar-Auth-Method-Name"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class ActorOfCoordinator:
    """What Ray finds: each answer has another token."""

    def __init__(self, admin_url: str) -> None:
        self.admin_url = admin_url
        self.tokens = ["one", "two", "three"]

    async def client_information(self) -> dict[str, object]:
        return {"admin_url": self.admin_url, "token": self.tokens.pop(0)}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Admin]:
    monkeypatch.delenv(VARIABLE, raising=False)
    found = Admin()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def actor(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> ActorOfCoordinator:
    found = ActorOfCoordinator(admin.url)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(access, "find_actor", lambda name: found)
    return found


async def test_each_request_has_a_new_token_where_ray_found_the_admin(admin: Admin, actor: ActorOfCoordinator) -> None:
    await ask_of_topic(None, "t", "/stats")
    kept = pickle.loads(pickle.dumps(AdminOfRay("http://127.0.0.1:1")))  # where the admin was before
    await ask_of_topic(kept, "t", "/stats")
    assert admin.shown == [("Bearer one", "ray"), ("Bearer two", "ray")]
    assert admin.paths == ["/admin/v2/persistent/public/default/t/stats"] * 2


async def test_a_url_that_a_user_gave_never_gets_the_token_of_ray(admin: Admin, actor: ActorOfCoordinator) -> None:
    await ask_of_topic(admin.url, "t")
    await ask_admin(admin.url + "/", "/x")
    assert admin.shown == [(None, None), (None, None)] and len(actor.tokens) == 3
    assert admin.paths[1] == "/x"


async def test_a_cluster_that_gives_no_token_is_asked_without_one(admin: Admin, actor: ActorOfCoordinator) -> None:
    actor.tokens = [""]
    await ask_admin(None, "/x")
    assert admin.shown == [(None, None)]


async def test_the_token_file_of_a_process_goes_before_the_token_of_ray(
    admin: Admin, actor: ActorOfCoordinator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("own\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "token"))
    await ask_admin(None, "/x")
    assert admin.shown == [("Bearer own", None)]


async def test_a_process_outside_ray_asks_at_the_url_that_it_was_handed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    await ask_admin(AdminOfRay(admin.url), "/x")
    assert admin.shown == [(None, None)]
