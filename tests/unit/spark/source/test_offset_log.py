"""The checkpoint of a stream that this program runs: which micro-batch is run again, and what is refused."""

from pathlib import Path

import pytest

from magnetar.protocol.errors import InvalidConfiguration
from magnetar.runtime.environment import Environment
from magnetar.spark.source import offset_log
from magnetar.spark.source.offset_log import MicroBatch, OffsetLog


def batch(number: int) -> MicroBatch:
    return MicroBatch(number, {"t": f"7:{number}"}, {"t": f"7:{number + 1}", "u": "8:0:2"})


@pytest.fixture
def log(tmp_path: Path) -> OffsetLog:
    return again(tmp_path)


def again(directory: Path) -> OffsetLog:
    return OffsetLog(Environment.real(threads_max=1).files, str(directory / "checkpoint"))


def test_what_was_planned_and_not_done_is_found_by_the_next_run(log: OffsetLog, tmp_path: Path) -> None:
    assert log.last() == (None, True)
    log.plan(batch(0))
    assert again(tmp_path).last() == (batch(0), False)
    log.done(batch(0))
    assert again(tmp_path).last() == (batch(0), True)
    log.plan(batch(1))
    assert again(tmp_path).last() == (batch(1), False)


def test_old_micro_batches_are_forgotten(log: OffsetLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_log, "KEPT", 3)
    for number in range(12):
        log.plan(batch(number))
        log.done(batch(number))
    assert again(tmp_path).last() == (batch(11), True)
    for part in ("offsets", "commits"):
        assert sorted(int(one.name) for one in (tmp_path / "checkpoint" / part).iterdir()) == [9, 10, 11]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'[{"t": "7:1"}]', b'[{"t": "7:1"}, {"t": "seven"}]'])
def test_a_damaged_checkpoint_is_refused(log: OffsetLog, tmp_path: Path, content: bytes) -> None:
    log.plan(batch(0))
    (tmp_path / "checkpoint" / "offsets" / "0").write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=r"damaged"):
        log.last()
