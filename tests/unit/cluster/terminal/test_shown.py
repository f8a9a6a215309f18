"""Contents of messages on a terminal."""

import pytest

from magnetar.cluster.terminal.receiving import content_text, hex_dump


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", "plain"),
        ("grün\n".encode(), "grün\n"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u202eevil".encode(), "\\u202eevil"),
        (b"", ""),
    ],
)
def test_contents_cannot_change_the_terminal(data: bytes, shown: str) -> None:
    assert content_text(data) == shown


def test_a_hex_dump_has_sixteen_bytes_a_line() -> None:
    lines = hex_dump(bytes(range(60, 80))).splitlines()
    assert lines[0] == "00000000 3C 3D 3E 3F 40 41 42 43 44 45 46 47 48 49 4A 4B <=>?@ABCDEFGHIJK"
    assert lines[1].split() == ["00000010", "4C", "4D", "4E", "4F", "LMNO"]
    assert hex_dump(b"\x00\xff").endswith(" ..")
