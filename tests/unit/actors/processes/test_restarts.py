"""When a process may be restarted, against a cluster in memory."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.actors.desired.record import DesiredState
from magnetar.actors.processes import restarts as restarts_module
from magnetar.actors.processes.restarts import Restarts
from magnetar.protocol.errors import (
    ClusterError,
    MetadataUnavailable,
    NoSuchKey,
    NotAllowedError,
    RestartStopped,
    RpcTimeout,
)


class Broker:
    """A broker that says how many of its ledgers lack copies; the last answer stays."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)

    async def lacking_copies(self) -> int:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Cluster:
    """Two brokers and three bookies, as the coordinator and the supervisor know them."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.brokers = {"broker-1": Broker(0), "broker-2": Broker(0)}
        self.alive = ["broker-1", "broker-2", "bookie-1", "bookie-2", "bookie-3"]
        self.rounds = [True]
        """What the auditor's rounds find; the last answer stays."""
        self.failure: Exception | None = None
        self.hangs = False
        self.desired = SimpleNamespace(state=DesiredState.of(2, 3), emptied=frozenset())
        self.rebalancer = SimpleNamespace(finish=self._finish)
        self.verified: list[Exception | None] = [None]
        """What the store says about the coordinator's epoch; the last answer stays."""
        self.office: Any = SimpleNamespace(
            desired=self.desired,
            store=SimpleNamespace(verify=self._verify),
            rebalancer=self.rebalancer,
            membership=SimpleNamespace(all=lambda: self._sessions(""), of_role=self._sessions),
            broker_calls=SimpleNamespace(of=self.brokers.__getitem__),
            auditor=SimpleNamespace(
                look_again=self._look_again, status=lambda: {"incomplete": 2, "to_check": 1, "limbo": ["bookie-3"]}
            ),
        )
        self.rest = self.log.append  # that of the reconciler
        self.restarts = Restarts(cast(Any, self), cast(Any, self))

    def _sessions(self, role: str) -> list[Any]:
        return [SimpleNamespace(node_id=one) for one in self.alive if one.startswith(role)]

    async def _look_again(self) -> bool:
        return self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]

    async def _verify(self) -> None:
        answer = self.verified.pop(0) if len(self.verified) > 1 else self.verified[0]
        if answer is not None:
            raise answer

    async def _finish(self) -> None:
        self.log.append("moves have ended")

    async def restart(self, member: str) -> None:
        """That of the supervisor."""
        self.log.append(f"restart {member}")
        if self.failure is not None:
            raise self.failure
        if self.hangs:
            await asyncio.Event().wait()

    def status(self) -> list[dict[str, str]]:
        return [{"node_id": "bookie-2", "state": "waiting", "problem": "OSError: no disk"}]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for bound in ("SAFE_TIMEOUT_S", "BACK_TIMEOUT_S", "SETTLE_TIMEOUT_S"):
        monkeypatch.setattr(restarts_module, bound, 0.05)
    monkeypatch.setattr(restarts_module, "POLL_S", 0.001)
    return Cluster()


async def test_a_bookie_waits_until_every_open_ledger_has_its_copies(cluster: Cluster) -> None:
    cluster.brokers["broker-2"] = broker = Broker(3, 1, 0)
    await cluster.restarts.restart("bookie-1")
    assert broker.answers == [0]
    assert cluster.log == ["restart bookie-1", ""]
    cluster.brokers["broker-2"] = Broker(3)
    with pytest.raises(
        RestartStopped, match=r"bookie-2 was not restarted: .* 3 ledgers that broker-2 writes have too few"
    ):
        await cluster.restarts.restart("bookie-2")
    assert "restart bookie-2" not in cluster.log


async def test_a_bookie_waits_until_the_auditor_finds_every_closed_ledger_whole(cluster: Cluster) -> None:
    cluster.rounds = [False, False, True]
    await cluster.restarts.restart("bookie-1")
    assert cluster.rounds == [True]
    cluster.rounds = [False]
    with pytest.raises(RestartStopped, match=r"2 ledgers lack copies, 1 have yet to be checked, bookie-3 lost data"):
        await cluster.restarts.restart("bookie-2")
    assert "restart bookie-2" not in cluster.log


async def test_a_broker_that_does_not_answer_is_no_consent(cluster: Cluster) -> None:
    cluster.brokers["broker-1"] = Broker(RpcTimeout("no answer"))
    with pytest.raises(RestartStopped, match="broker-1 does not say whether its ledgers have all copies: no answer"):
        await cluster.restarts.restart("bookie-1")
    assert cluster.log == []


async def test_a_bookie_has_to_leave_everything_as_it_was(cluster: Cluster) -> None:
    cluster.brokers["broker-1"] = Broker(0, 1)
    with pytest.raises(
        RestartStopped, match=r"bookie-1 was restarted and runs, but after 0 s 1 ledgers that broker-1 writes"
    ):
        await cluster.restarts.restart("bookie-1")
    assert cluster.log == ["restart bookie-1", ""]


async def test_a_broker_gets_nothing_new_until_it_is_back_and_copies_do_not_matter_to_it(cluster: Cluster) -> None:
    cluster.brokers["broker-2"] = Broker(3)
    cluster.rounds = [False]
    view = await cluster.restarts.restart("broker-1")
    assert cluster.log == ["broker-1", "restart broker-1", ""]
    assert view["process"] == "broker-1" and min(view["waited_s"], view["away_s"], view["settled_s"]) >= 0
    cluster.failure = ClusterError("broker-1 cannot be started: OSError: no port")
    with pytest.raises(
        RestartStopped, match=r"no port\. It is started again until it runs: read its log, broker-1\.log"
    ):
        await cluster.restarts.restart("broker-1")
    assert cluster.log[-1] == "", "it takes topics again as soon as it runs"


async def test_nothing_is_restarted_while_a_member_is_away_or_drains(cluster: Cluster) -> None:
    cluster.alive.remove("bookie-2")
    for member in ("bookie-1", "broker-1", "admin"):
        with pytest.raises(RestartStopped, match=rf"{member} was not restarted: .* bookie-2 is away"):
            await cluster.restarts.restart(member)
    with pytest.raises(RestartStopped, match=r"coordinator was not restarted: .* bookie-2 is away"):
        await cluster.restarts.prepare_coordinator()
    cluster.alive.append("bookie-2")
    cluster.desired.emptied = frozenset({"broker-2"})
    with pytest.raises(RestartStopped, match="broker-2 still drains"):
        await cluster.restarts.restart("bookie-1")
    assert cluster.log == []


@pytest.mark.parametrize("member", ["bookie-2", "broker-1", "admin"])
async def test_a_coordinator_that_was_superseded_takes_nothing_away(cluster: Cluster, member: str) -> None:
    cluster.verified = [MetadataUnavailable("this coordinator (epoch 3) was superseded")]
    with pytest.raises(RestartStopped, match=rf"{member} was not restarted: .* whether it is active: .* superseded"):
        await cluster.restarts.restart(member)
    assert cluster.log == []
    cluster.verified = [MetadataUnavailable("the database is away"), None]
    await cluster.restarts.restart(member)
    assert f"restart {member}" in cluster.log


async def test_a_member_that_goes_away_while_ledgers_are_looked_at_is_noticed(cluster: Cluster) -> None:
    async def look_again() -> bool:
        if "bookie-3" in cluster.alive:
            cluster.alive.remove("bookie-3")
        return True

    cluster.office.auditor.look_again = look_again
    with pytest.raises(RestartStopped, match=r"bookie-1 was not restarted: .* bookie-3 is away"):
        await cluster.restarts.restart("bookie-1")
    assert cluster.log == []


async def test_a_process_that_does_not_come_back_in_time_is_told_with_its_problem(cluster: Cluster) -> None:
    cluster.hangs = True
    with pytest.raises(RestartStopped, match="bookie-2 did not come back within 0 s: OSError: no disk"):
        await cluster.restarts.restart("bookie-2")
    assert cluster.log == ["restart bookie-2", ""]


async def test_the_coordinator_ends_when_no_topic_is_between_two_brokers(cluster: Cluster) -> None:
    await cluster.restarts.prepare_coordinator()
    assert cluster.log == ["moves have ended"]


async def test_one_at_a_time_and_only_what_there_is(cluster: Cluster) -> None:
    cluster.hangs = True
    first = asyncio.create_task(cluster.restarts.restart("bookie-1"))
    while not cluster.log:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(NotAllowedError, match="bookie-1 is being restarted"):
        await cluster.restarts.restart("broker-1")
    with pytest.raises(NotAllowedError, match="bookie-1 is being restarted"):
        await cluster.restarts.prepare_coordinator()
    with pytest.raises(RestartStopped):
        await first
    cluster.hangs = False
    await cluster.restarts.restart("broker-1")
    with pytest.raises(NoSuchKey, match="bookie-4 is no process of this cluster"):
        await cluster.restarts.restart("bookie-4")
