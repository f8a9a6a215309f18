"""Where encryption keys come from."""

import base64
from pathlib import Path

import pytest

from magnetar.cluster.terminal.keys import GivenKey
from magnetar.protocol.errors import InvalidConfiguration


def test_a_key_comes_from_a_path_a_file_uri_or_a_data_uri(tmp_path: Path) -> None:
    file = tmp_path / "a key.pem"
    file.write_bytes(b"PEM")
    data = "data:application/x-pem-file;base64," + base64.b64encode(b"PEM").decode()
    for where in (str(file), file.as_uri(), data):
        key = GivenKey(where)
        assert key.get_public_key("any", {}).key == key.get_private_key("any", {}).key == b"PEM"


@pytest.mark.parametrize("wrong", ["data:application/x-pem-file,PEM", "data:;base64,?"])
def test_a_data_uri_without_base64_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidConfiguration, match="base64"):
        GivenKey(wrong)


def test_a_key_that_is_missing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        GivenKey("file:///nowhere/key.pem")
