"""The note that outlives a worker of `consume`: what it handles, and nothing when it handles nothing."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from magnetar.tasks.handling_note import HandlingNote, read_note, take_note


class PlacedMessage:
    """What a note asks of a message."""

    def __init__(self, *place: int) -> None:
        self._place = place

    def message_id(self) -> "PlacedMessage":
        return self

    def ledger_id(self) -> int:
        return self._place[0]

    def entry_id(self) -> int:
        return self._place[1]

    def batch_index(self) -> int:
        return self._place[2]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandlingNote:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return HandlingNote("worker")


MESSAGES: Any = [PlacedMessage(7, 1, -1), PlacedMessage(7, 2, 5)]


def test_a_note_says_what_is_being_handled(note: HandlingNote) -> None:
    note.begin(MESSAGES)
    note.end()
    note.begin(MESSAGES[1:])
    assert take_note(str(note.path)) == [(7, 2, 5)]
    assert not note.path.exists()


def test_nothing_is_being_handled_behind_a_call_and_before_the_first_one(note: HandlingNote) -> None:
    assert read_note(note.path.read_bytes()) == []
    note.begin(MESSAGES)
    assert read_note(note.path.read_bytes()) == [(7, 1, -1), (7, 2, 5)]
    note.end()
    assert read_note(note.path.read_bytes()) == []
    note.close()
    assert take_note(str(note.path)) == []


def test_no_message_is_blamed_by_a_note_that_is_not_whole(note: HandlingNote) -> None:
    note.begin(MESSAGES)
    whole = note.path.read_bytes()
    assert read_note(whole + b"rest of a longer one") == [(7, 1, -1), (7, 2, 5)]
    assert [read_note(whole[:size]) for size in range(len(whole))] == [[]] * len(whole)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        assert read_note(bytes(damaged)) == []


@pytest.mark.parametrize("body", [{"a": 1}, [[1, 2]], [[1, 2, "3"]], [[True, 2, 3]], 5, None])
def test_no_message_is_blamed_by_a_note_of_something_else(body: object) -> None:
    written = json.dumps(body).encode()
    assert read_note(struct.pack(">II", len(written), zlib.crc32(written)) + written) == []


def test_a_worker_whose_note_is_refused_goes_on_without(note: HandlingNote, tmp_path: Path) -> None:
    second = HandlingNote("worker")  # as if a stranger had made the file
    second.begin(MESSAGES)
    second.end()
    second.close()
    assert note.path.exists()
