"""Logs in files: private, bounded, and no reason to stop when they cannot be written."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.runtime import logs


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
        handler.close()


def test_a_log_file_holds_one_line_a_record_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "bookie-1.log"
    logs.log_to_file(str(path))
    logging.getLogger("test").warning("a name with\na line break")
    assert path.read_text().rstrip().endswith("WARNING test: a name with\\na line break")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_an_earlier_process_wrote_stays(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.log"
    path.write_text("before\n")
    logs.log_to_file(str(path))
    logging.getLogger("test").warning("after")
    assert path.read_text().splitlines()[0] == "before"
    assert len(path.read_text().splitlines()) == 2


def test_log_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_SIZE_MAX_BYTES", 2000)
    path = tmp_path / "broker-1.log"
    logs.log_to_file(str(path))
    for number in range(200):
        logging.getLogger("test").warning("record %d %s", number, "x" * 80)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["broker-1.log", *(f"broker-1.log.{n}" for n in range(1, 4))]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert "record 199" in path.read_text()
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_a_log_file_that_cannot_be_made_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no directory")
    logs.log_to_file(str(tmp_path / "file" / "bookie-1.log"))
    assert "this process logs to standard error only" in caplog.text
