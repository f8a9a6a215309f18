"""The token of a process, in a file that a variable names."""

from pathlib import Path

import pytest

from magnetar.runtime.token_file import VARIABLE, token_of_process


def test_the_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text in ("one\n", "two"):
        file.write_text(text)
        assert token_of_process({VARIABLE: str(file)}) == text.strip()
    assert token_of_process({}) is None
    for text in ("", "two words", "eyJ\neyJ", "é"):
        file.write_text(text)
        with pytest.raises(ValueError, match="has no token") as refused:
            token_of_process({VARIABLE: str(file)})
        assert "eyJ" not in str(refused.value)
    file.unlink()
    with pytest.raises(OSError):
        token_of_process({VARIABLE: str(file)})
