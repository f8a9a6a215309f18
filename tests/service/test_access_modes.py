"""Access modes of producers: leader election through our clients and the official one, across a broker's crash."""

import asyncio
import threading
import time
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar import AsyncClient, MessageId, ProducerAccessMode, ProducerBusy, ProducerFenced
from magnetar.actors.admin.topic_figures import topic_json
from magnetar.protocol.pulsar_pb2 import BaseCommand, ServerError, WaitForExclusive
from magnetar.protocol.pulsar_pb2 import Exclusive as WireExclusive
from support.clients.leader import LeaderProcess, check_log
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import until
from support.servers.embedded_cluster import EmbeddedCluster

EXCLUSIVE, WAIT = ProducerAccessMode.Exclusive, ProducerAccessMode.WaitForExclusive
FENCING = ProducerAccessMode.ExclusiveWithFencing
WAIT_MS = 15_000


@pytest.fixture
def client(cluster):
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


def waiting(cluster, topic):
    """How many producers wait for access to a topic."""
    loaded = [broker.topics.loaded.get(topic) for broker in cluster.brokers.values()]
    return sum(one.publishing.waiting_producers for one in loaded if one is not None)


class Election(threading.Thread):
    """Creates a producer that waits for exclusive access, in a thread."""

    def __init__(self, client, topic, mode=WAIT, **options):
        super().__init__(daemon=True)
        self.producer = self.error = None
        self._create = lambda: client.create_producer(topic, access_mode=mode, **options)
        self.start()

    def run(self):
        try:
            self.producer = self._create()
        except Exception as error:
            self.error = error

    def elected(self):
        self.join(20)
        assert self.producer is not None, self.error
        return self.producer


def everything(client, topic):
    """All payloads of a topic, in the order of the log."""
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS).data())
    reader.close()
    return found


@pytest.mark.promise("4.1")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_shared_is_the_default_and_takes_many_producers(cluster, client, official_client, topic, module):
    side = {magnetar: client, pulsar: official_client}[module]
    consumer = client.subscribe(topic, "s")
    producers = [side.create_producer(topic) for _ in range(3)]
    producers.append(side.create_producer(topic, access_mode=module.ProducerAccessMode.Shared))
    for _ in range(2):
        for number, producer in enumerate(producers):
            producer.send(b"%d" % number)
    assert sorted(consumer.receive(WAIT_MS).data() for _ in range(8)) == sorted([b"0", b"1", b"2", b"3"] * 2)
    loaded = cluster.brokers[cluster.owner(topic)].topics.loaded[topic]

    async def figures():
        return topic_json(loaded.describe())["publishers"]

    assert [one["accessMode"] for one in cluster.run(figures())] == ["Shared"] * 4


@pytest.mark.promise("4.2", "4.8", "4.9")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
@pytest.mark.parametrize("mode", ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"])
def test_one_holder_is_the_only_writer_until_it_leaves(cluster, client, official_client, topic, module, mode):
    """Shared and Exclusive producers of either client fail, and one that waits gets in when the holder closes."""
    holding = {magnetar: client, pulsar: official_client}[module]
    holder = holding.create_producer(topic, access_mode=getattr(module.ProducerAccessMode, mode))
    for side, other in ((client, magnetar), (official_client, pulsar)):
        with pytest.raises(other.ProducerBusy):
            side.create_producer(topic)
        with pytest.raises(other.ProducerFenced):
            side.create_producer(topic, access_mode=other.ProducerAccessMode.Exclusive)
    election = Election(holding, topic, module.ProducerAccessMode.WaitForExclusive)
    until_sync(lambda: waiting(cluster, topic) == 1)
    holder.send(b"alone")
    holder.close()
    election.elected().send(b"next")
    assert everything(client, topic) == [b"alone", b"next"]


def evicting(module: Any, client: Any, topic: str) -> Any:
    """A producer that takes the place of a holder that has stopped. What the holder had sent before still comes, and
    counts as a sign of life."""
    ends = time.monotonic() + 20
    while True:
        try:
            return client.create_producer(topic, access_mode=module.ProducerAccessMode.Exclusive)
        except module.ProducerFenced:
            if time.monotonic() > ends:
                raise


@pytest.mark.promise("4.3")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_a_holder_that_is_cut_off_is_evicted_for_a_newcomer(cut_off_fast, topic, module):
    """A stopped process answers nothing, as one behind a broken network. It is fenced when it goes on."""
    quiet = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    client = module.Client(cut_off_fast.service_url, operation_timeout_seconds=20, **quiet)
    client.subscribe(topic, "keep").close()
    with LeaderProcess(cut_off_fast.service_url, topic) as leader:
        leader.wait_for(5)
        with pytest.raises(module.ProducerFenced):
            client.create_producer(topic, access_mode=module.ProducerAccessMode.Exclusive)
        leader.stop()
        newcomer = evicting(module, client, topic)
        newcomer.send(b"newcomer")
        leader.go_on()
        leader.wait_for_end()
    assert leader.fenced
    client.close()
    with magnetar.Client(cut_off_fast.service_url) as reading:
        check_log(everything(reading, topic), leader.acknowledged, b"newcomer")


@pytest.fixture(scope="module")
def cut_off_fast(tmp_path_factory):
    """A cluster whose broker finds out within 0.3 s that a connection is dead."""
    with EmbeddedCluster(tmp_path_factory.mktemp("cut"), connection_liveness_timeout_ms=300) as running:
        yield running


@pytest.mark.promise("4.2", "4.8")
def test_beside_an_exclusive_producer_all_others_fail(client, topic):
    holder = client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(ProducerFenced, match=r"holds .* alone"):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    with pytest.raises(ProducerBusy, match=r"holds .* alone"):
        client.create_producer(topic)
    holder.send(b"1")
    holder.close()
    shared = client.create_producer(topic)
    with pytest.raises(ProducerFenced, match="has producers that share it"):
        client.create_producer(topic, access_mode=EXCLUSIVE)
    shared.close()


@pytest.mark.promise("4.4", "4.7")
def test_a_deposed_leader_learns_it_when_its_next_write_fails(client, topic):
    old = client.create_producer(topic, access_mode=EXCLUSIVE)
    old.send(b"old")
    new = client.create_producer(topic, access_mode=FENCING)
    new.send(b"new")
    with pytest.raises(ProducerFenced):
        old.send(b"late")
    with pytest.raises(ProducerFenced):
        old.send_many([b"late"])
    results = []
    old.send_async(b"late", lambda result, _: results.append(result))
    assert results == [magnetar.Result.ProducerFenced]
    assert everything(client, topic) == [b"old", b"new"]
    old.close()


@pytest.mark.promise("4.5")
async def test_creating_waits_beyond_the_operation_timeout_and_is_granted_in_order(cluster, topic):
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=1) as client:
        holder = await client.create_producer(topic, access_mode=WAIT)
        first = asyncio.create_task(client.create_producer(topic, access_mode=WAIT))
        await until(lambda: waiting(cluster, topic) == 1)
        second = asyncio.create_task(client.create_producer(topic, access_mode=WAIT))
        await until(lambda: waiting(cluster, topic) == 2)
        await asyncio.sleep(1.1)
        assert not first.done()
        await holder.close()
        leader = await first
        await leader.send(b"first")
        assert not second.done()
        await leader.close()
        await (await second).send(b"second")


@pytest.mark.promise("4.5")
async def test_a_creation_that_is_cancelled_leaves_the_queue(cluster, topic):
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=5) as client:
        holder = await client.create_producer(topic, access_mode=EXCLUSIVE)
        task = asyncio.create_task(client.create_producer(topic, access_mode=WAIT))
        await until(lambda: waiting(cluster, topic) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: waiting(cluster, topic) == 0)
        await holder.send(b"alone")


def test_a_client_that_closes_ends_its_waiting_creation(cluster, client, topic):
    holder = client.create_producer(topic, access_mode=EXCLUSIVE)
    leaving = magnetar.Client(cluster.service_url)
    election = Election(leaving, topic)
    until_sync(lambda: waiting(cluster, topic) == 1)
    leaving.close()
    election.join(10)
    assert isinstance(election.error, magnetar.AlreadyClosed)
    until_sync(lambda: waiting(cluster, topic) == 0)
    holder.close()


def until_sync(condition):
    asyncio.run(until(condition))


@pytest.mark.promise("4.5", "4.6")
def test_our_client_and_the_official_one_elect_one_leader_after_the_other(cluster, client, official_client, topic):
    ours = client.create_producer(topic, access_mode=WAIT)
    election = Election(official_client, topic, pulsar.ProducerAccessMode.WaitForExclusive)
    until_sync(lambda: waiting(cluster, topic) == 1)
    ours.send(b"ours")
    ours.close()
    theirs = election.elected()
    theirs.send(b"theirs")
    again = Election(client, topic)
    until_sync(lambda: waiting(cluster, topic) == 1)
    theirs.close()
    again.elected().send(b"ours again")
    assert everything(client, topic) == [b"ours", b"theirs", b"ours again"]


@pytest.mark.promise("4.4")
def test_the_official_client_fences_ours(client, official_client, topic):
    ours = client.create_producer(topic, access_mode=EXCLUSIVE)
    ours.send(b"ours")
    fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
    official_client.create_producer(topic, access_mode=fencing).send(b"theirs")
    with pytest.raises(ProducerFenced):
        ours.send(b"late")
    assert everything(client, topic) == [b"ours", b"theirs"]


@pytest.mark.promise("4.4", "4.7")
def test_the_official_client_is_fenced_by_ours(client, official_client, topic):
    theirs = official_client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    theirs.send(b"theirs")
    client.create_producer(topic, access_mode=FENCING).send(b"ours")
    with pytest.raises(pulsar.ProducerFenced):
        theirs.send(b"late")


def test_statistics_show_access_modes_epoch_and_waiting_producers(cluster, client, topic):
    producer = client.create_producer(topic, access_mode=EXCLUSIVE)
    election = Election(client, topic)
    until_sync(lambda: waiting(cluster, topic) == 1)

    async def figures():
        return cluster.brokers[cluster.owner(topic)].topics.loaded[topic].describe()

    shown = topic_json(cluster.run(figures()))
    assert [one["accessMode"] for one in shown["publishers"]] == ["Exclusive"]
    assert (shown["topicEpoch"], shown["waitingPublishers"]) == (0, 1)
    producer.close()
    election.elected().close()


@pytest.mark.promise("4.9")
def test_each_partition_of_an_exclusive_producer_is_exclusive(cluster, client, topic):
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=3))
    with client.create_producer(topic, access_mode=EXCLUSIVE) as producer:
        producer.send_many([b"%d" % number for number in range(30)])
        for partition in client.get_topic_partitions(topic):
            with pytest.raises(ProducerBusy):
                client.create_producer(partition)


def test_a_producer_names_the_subscription_that_begins_with_its_topic(client, topic):
    with client.create_producer(topic, initial_subscription_name="audit") as producer:
        producer.send(b"first")
    consumer = client.subscribe(topic, "audit")
    assert consumer.receive(WAIT_MS).data() == b"first"
    consumer.close()


@pytest.mark.promise("4.9")
@pytest.mark.parametrize("options", [{"access_mode": 1}, {"access_mode": None}, {"initial_subscription_name": ""}])
def test_an_impossible_option_is_refused_by_name(client, options):
    with pytest.raises(magnetar.InvalidConfiguration, match=next(iter(options))):
        client.create_producer("t", **options)


@pytest.mark.promise("4.6")
def test_a_killed_leader_is_followed_behind_all_that_it_acknowledged(cluster, client, topic):
    client.subscribe(topic, "keep").close()
    with LeaderProcess(cluster.service_url, topic) as leader:
        leader.wait_for(1)
        election = Election(client, topic)
        until_sync(lambda: waiting(cluster, topic) == 1)
        leader.wait_for(50)
        leader.kill()
    elected = election.elected()
    elected.send(b"elected")
    check_log(everything(client, topic), leader.acknowledged, b"elected")

    async def come_back_with_the_epoch_of_the_dead_leader() -> Any:
        peer = await WirePeer.open(int(cluster.service_url.rsplit(":", 1)[1]))
        answer = await peer.producer(
            topic,
            producer_name="leader",
            user_provided_producer_name=True,
            producer_access_mode=WaitForExclusive,
            topic_epoch=0,
            epoch=1,
        )
        await peer.close()
        return answer

    assert asyncio.run(come_back_with_the_epoch_of_the_dead_leader()).error == ServerError.ProducerFenced
    elected.send(b"again")
    assert everything(client, topic)[-2:] == [b"elected", b"again"]


@pytest.mark.promise("4.6")
def test_a_holder_with_a_refused_entry_loses_access_to_one_that_waits(cluster, client, topic):
    client.subscribe(topic, "keep").close()

    async def refused() -> Any:
        peer = await WirePeer.open(int(cluster.service_url.rsplit(":", 1)[1]))
        holder: dict[str, Any] = {"producer_name": "holder", "user_provided_producer_name": True}
        answer = await peer.producer(topic, producer_access_mode=WireExclusive, **holder)
        assert answer.topic_epoch == 0
        election = Election(client, topic)
        await asyncio.to_thread(until_sync, lambda: waiting(cluster, topic) == 1)
        broken = bytearray(entry(b"broken"))
        broken[-1] ^= 1
        peer.send_entry(bytes(broken), 0)
        assert (await peer.expect(BaseCommand.SEND_ERROR)).error == ServerError.ChecksumError
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        elected = await asyncio.to_thread(election.elected)
        await asyncio.to_thread(elected.send, b"elected")
        answer = await peer.producer(topic, producer_access_mode=WireExclusive, topic_epoch=0, epoch=1, **holder)
        await peer.close()
        return answer

    assert asyncio.run(refused()).error == ServerError.ProducerFenced
    assert everything(client, topic) == [b"elected"]


@pytest.mark.promise("4.6")
def test_leader_election_goes_on_across_a_brokers_crash(tmp_path, topic):
    """The holder returns with its epoch, or the waiting one has access and the old holder is fenced: never both."""
    with EmbeddedCluster(tmp_path, brokers=2) as cluster, magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keep").close()
        leader = client.create_producer(topic, access_mode=WAIT)
        leader.send(b"before")
        election = Election(client, topic)
        until_sync(lambda: waiting(cluster, topic) == 1)
        owner = cluster.owner(topic)
        cluster.run(cluster.stop_broker(owner))
        try:
            leader.send(b"leader")
            leader.close()
            elected = election.elected()
        except ProducerFenced:
            elected = election.elected()
        elected.send(b"elected")
        new_owner = cluster.owner(topic)
        assert new_owner != owner

        async def topic_epoch() -> int | None:
            return cluster.brokers[new_owner].topics.loaded[topic].describe().topic_epoch

        assert cluster.run(topic_epoch()) == 1
        log = everything(client, topic)
        assert log in ([b"before", b"leader", b"elected"], [b"before", b"elected"])
