"""The directory of a retired bookie goes whole, its cookie last."""

import os
from pathlib import Path
from typing import Any

import pytest

from magnetar.actors.processes.erasing import remove_directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory as a bookie leaves it."""
    found = tmp_path / "bookie-2"
    found.mkdir()
    for name in ("1.journal", "cookie", "zz.compacted"):
        (found / name).write_text(name)
    (found / "more").mkdir()
    (found / "more" / "file").write_text("x")
    return found


def test_the_whole_directory_goes_and_a_second_removal_is_nothing(directory: Path) -> None:
    remove_directory(str(directory))
    assert not directory.exists()
    remove_directory(str(directory))


def test_the_cookie_is_there_until_all_else_is_gone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    unlink = os.unlink

    def watched(path: str, **options: Any) -> None:
        seen.append(sorted(os.listdir(directory)))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", watched)
    remove_directory(str(directory))
    assert all("cookie" in one for one in seen) and seen[-1] == ["cookie"]


def test_a_link_inside_is_removed_and_not_followed(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("x")
    (directory / "link").symlink_to(other)
    remove_directory(str(directory))
    assert not directory.exists() and (other / "kept").exists()
