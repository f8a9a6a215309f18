"""The note of what a process does: it outlives the process, and tells of a living one nothing."""

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.runtime.process_note import ProcessNote, left_notes, read_note_value

PROGRAM = """
import os, pathlib, sys
from magnetar.runtime.process_note import ProcessNote
note = ProcessNote(pathlib.Path(sys.argv[1]), "nothing is noted")
note.write(["one", "two"])
if os.fork() == 0:
    sys.stdin.buffer.read()  # a child that outlives it
    os._exit(0)
print("written", flush=True)
sys.stdin.buffer.read()
os._exit(0)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that keeps the note `note-1`."""
    program = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "note-1")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        yield process
        process.kill()


def values(directory: Path) -> list[object]:
    """What those notes say whose processes are gone."""
    found: list[object] = []
    for note in left_notes(directory, "note-"):
        found.append(note.value())
        note.close()
    return found


def test_a_note_is_left_when_its_process_is_killed(tmp_path: Path, process: "subprocess.Popen[bytes]") -> None:
    assert values(tmp_path) == []
    process.kill()
    process.wait()
    assert values(tmp_path) == [["one", "two"]]
    (note,) = left_notes(tmp_path, "note-")
    assert list(left_notes(tmp_path, "note-")) == []  # it is being taken
    note.remove()
    note.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_does_not_take_its_own_note_and_removes_it(tmp_path: Path) -> None:
    note = ProcessNote(tmp_path / "note-own", "nothing is noted")
    note.write([1])
    assert values(tmp_path) == []
    assert read_note_value(note.path.read_bytes()) == [1]
    note.clear()
    assert read_note_value(note.path.read_bytes()) is None
    note.close()
    assert list(tmp_path.iterdir()) == []
    note.write([2])
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_note_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"\0" * 8)
    (tmp_path / "note-link").symlink_to(tmp_path / "target")
    (tmp_path / "note-directory").mkdir()
    os.mkfifo(tmp_path / "note-pipe")
    (tmp_path / "note-of-a-process-that-begins").touch()
    assert values(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_whole_note_of_no_json_says_nothing(body: bytes) -> None:
    assert read_note_value(struct.pack(">II", len(body), zlib.crc32(body)) + body) is None


def test_a_note_that_is_refused_is_left_out(tmp_path: Path, caplog: Any) -> None:
    note = ProcessNote(tmp_path / "nowhere" / "note", "nothing is noted")
    note.write([1])
    note.close()
    assert "nothing is noted" in caplog.text
