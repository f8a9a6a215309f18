"""The records of a move of the metadata."""

from magnetar.storage.metadata.moved_store import Move


def test_a_record_that_an_early_version_wrote_loses_its_password_when_it_is_read() -> None:
    assert Move.unpack(Move("1", "postgresql://u:s3cret@h/d").pack()) == Move("1", "postgresql://u@h/d")
    assert Move.unpack(Move("1", "u:s3cret@h").pack()).url == "***@h"
