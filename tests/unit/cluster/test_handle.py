"""Waiting for drained members, whatever the coordinator does meanwhile."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from magnetar.cluster import handle
from magnetar.cluster.handle import Cluster
from magnetar.protocol.cluster_status import DrainView
from magnetar.protocol.errors import ClusterError, ServiceUnitNotReady

DRAINING = {
    "desired": {"draining": {"broker-2": {"left": 3, "most": 5}}, "brokers": [], "bookies": []},
    "processes": [],
}
STARTING = {
    "desired": {"draining": {}, "brokers": [], "bookies": []},
    "processes": [{"node_id": "broker-3", "state": "starting"}],
}
DONE = {
    "desired": {"draining": {}, "brokers": [], "bookies": [], "left_over": {"bookie-2": "its machine is away"}},
    "processes": [{"node_id": "broker-1", "state": "running"}],
}
AWAY = ClusterError("the coordinator does not answer: try again")


class Answering(Cluster):
    """Answers one status after the other, or raises it; the last one for ever."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__("c", [], "")
        self.answers = list(answers)
        self.refreshed = 0

    def status(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refresh(self) -> None:
        self.refreshed += 1

    def _unasked(self, *arguments: Any, **options: Any) -> Any:
        raise AssertionError("waiting changes nothing")

    scale = drain = undrain = accept_lost_ledgers = stop = _restart_one = _unasked


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "DRAIN_POLL_S", 0.001)


def test_a_drain_is_waited_for_although_the_coordinator_is_restarted_meanwhile() -> None:
    seen: list[Mapping[str, DrainView]] = []
    cluster = Answering([DRAINING, AWAY, ServiceUnitNotReady("not active"), DRAINING, STARTING, DONE])
    assert cluster.wait_drained(on_progress=seen.append) == {"bookie-2": "its machine is away"}
    assert [len(one) for one in seen] == [1, 1, 0, 0]
    assert cluster.refreshed == 1


def test_a_coordinator_that_never_answers_again_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "SILENCE_MAX_S", 0.01)
    with pytest.raises(ClusterError, match="does not answer"):
        Answering([DRAINING, AWAY]).wait_drained()


@pytest.mark.parametrize(("answer", "text"), [(AWAY, "does not answer"), (DRAINING, "broker-2 did not get ready")])
def test_a_wait_ends_in_time(answer: Any, text: str) -> None:
    with pytest.raises(ClusterError, match=text):
        Answering([answer]).wait_drained(0.01)
