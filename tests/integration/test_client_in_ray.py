"""Clients on a Ray cluster: found without a URL, shared by the tasks of a process, passed between processes."""

from typing import Any, cast

import pytest
import ray

import magnetar
from magnetar.cluster.ray_cluster import RayCluster


@ray.remote(num_cpus=1)
class Worker:
    """Runs one function after the other in one process."""

    def run(self, function, *arguments):
        return function(*arguments)


@pytest.fixture
def worker(cluster: RayCluster):
    made = Worker.remote()
    yield made
    ray.kill(made)


@pytest.mark.promise("29.12")
def test_a_client_without_a_url_finds_the_cluster(cluster: RayCluster) -> None:
    with magnetar.Client() as client:
        consumer = client.subscribe("ray-found", "s")
        sent = client.create_producer("ray-found").send(b"hello")
        assert consumer.receive(20_000).message_id() == sent


def test_clients_of_one_process_share_one_thread(worker) -> None:
    def work(topic: str) -> tuple[int, list[str]]:
        import threading

        first, second = magnetar.Client(), magnetar.Client()
        first.create_producer(topic).send(b"first")
        producer = second.create_producer(topic)
        first.close()
        producer.send(b"second")
        second.close()
        again = magnetar.Client()
        again.create_producer(topic).send(b"third")
        again.close()
        shared = len({id(client.running) for client in (first, second, again)})
        return shared, [thread.name for thread in threading.enumerate() if thread.name == "magnetar-client"]

    for number in range(2):
        assert ray.get(worker.run.remote(work, f"ray-shared-{number}")) == (1, ["magnetar-client"])


@pytest.mark.promise("29.12")
def test_clients_producers_and_consumers_travel(cluster: RayCluster, worker) -> None:
    with magnetar.Client() as client:
        producer = client.create_producer("ray-travel", batching_enabled=True)
        consumer = client.subscribe("ray-travel", "s", magnetar.ConsumerType.Shared)

        def publish(sender: magnetar.Producer, who: magnetar.Client) -> tuple[magnetar.MessageId, list[str]]:
            return sender.send(b"from afar"), who.get_topic_partitions("ray-travel")

        def take(receiver: magnetar.Consumer) -> magnetar.Message:
            message = receiver.receive(20_000)
            receiver.acknowledge(message)
            receiver.close()
            return message

        sent, partitions = ray.get(worker.run.remote(publish, producer, client))
        assert partitions == ["persistent://public/default/ray-travel"]
        message = consumer.receive(20_000)
        assert (message.message_id(), message.data()) == (sent, b"from afar")
        consumer.acknowledge(message)
        travelling = worker.run.remote(take, consumer)
        consumer.close()
        producer.send(b"back", {"a": "b"})
        taken: Any = ray.get(travelling, timeout=60)
        assert (taken.data(), taken.properties()) == (b"back", {"a": "b"})


@pytest.mark.promise("29.12")
def test_an_async_client_lives_in_an_async_actor(cluster: RayCluster) -> None:
    @ray.remote(num_cpus=1)
    class Echo:
        async def once(self, topic: str) -> bytes:
            async with magnetar.AsyncClient() as client:
                consumer = await client.subscribe(topic, "s")
                producer = await client.create_producer(topic)
                await producer.send(b"echo")
                return (await consumer.receive(20_000)).data()

    echo = cast(Any, Echo).remote()
    assert ray.get(echo.once.remote("ray-async"), timeout=60) == b"echo"
    ray.kill(echo)


def test_work_that_lists_what_it_read_can_return_messages(cluster: RayCluster, worker) -> None:
    def work(topic: str) -> list[magnetar.Message]:
        with magnetar.Client() as client:
            client.create_producer(topic, batching_enabled=True).send_many([b"%d" % number for number in range(100)])
            with client.create_reader(topic, magnetar.MessageId.earliest) as reader:
                return [reader.read_next(20_000) for _ in range(100)]

    messages = ray.get(worker.run.remote(work, "ray-messages"), timeout=60)
    assert [int(message.data()) for message in messages] == list(range(100))
    assert messages == sorted(messages, key=lambda message: message.message_id())
