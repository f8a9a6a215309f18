"""The credential of a client that found the cluster through Ray."""

import pytest
import ray

from magnetar.client.core import ray_credentials
from magnetar.client.core.ray_credentials import RayAuthentication
from magnetar.protocol.errors import ConnectError


def test_a_client_whose_program_has_left_ray_starts_no_other_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ray_credentials, "find_actor", asked.append)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConnectError, match="left its Ray"):
        RayAuthentication().auth_data()
    assert asked == []
