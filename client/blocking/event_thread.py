"""The thread that tells a blocking consumer's event listener what happens, one event after the other.

It is a thread of its own, so that the listener may call the consumer. It ends when the consumer is closed.
"""

import threading
from queue import SimpleQueue

from ..consuming.topic_consumer import TopicConsumer
from ..core.failover_events import tell


def serve_events(face: object, consumer: TopicConsumer) -> None:
    """Start the thread, if the application wants to know. `face` is what the listener gets as its consumer."""
    listener, events = consumer.configuration.consumer_event_listener, consumer.receive_queue.events
    if listener is None or events is None:
        return
    queue: SimpleQueue[tuple[int, bool] | None] = SimpleQueue()

    def serve() -> None:
        while (event := queue.get()) is not None:
            tell(listener, face, *event)

    def deliver(partition: int, active: bool) -> None:
        queue.put((partition, active))

    threading.Thread(target=serve, name=f"magnetar-events {consumer.topic_text}", daemon=True).start()
    consumer.core.loop.call_soon_threadsafe(events.deliver_to, deliver, lambda: queue.put(None))
