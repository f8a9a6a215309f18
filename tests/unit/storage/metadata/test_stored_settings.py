"""The metadata record of a cluster's settings."""

import pytest

from magnetar.protocol.errors import MetadataError
from magnetar.storage.metadata.store import pack
from magnetar.storage.metadata.stored_settings import pack_settings, unpack_settings


def test_values_of_every_kind_travel() -> None:
    values = {"flag": True, "number": 3, "share": 0.5, "text": "x"}
    assert unpack_settings(pack_settings(values)) == values
    assert unpack_settings(pack_settings({})) == {}


def test_what_a_newer_release_adds_beside_them_is_no_damage() -> None:
    assert unpack_settings(pack({"settings": {"a": 1}, "since": 7})) == {"a": 1}


@pytest.mark.parametrize(
    "value", [b"", b"\xc1", pack([]), pack({}), pack({"settings": [1]}), pack({"settings": {"a": []}})]
)
def test_damage_is_refused(value: bytes) -> None:
    with pytest.raises(MetadataError):
        unpack_settings(value)
