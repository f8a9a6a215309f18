"""A batch knows the bytes of its messages' payloads, as statistics count them."""

from collections.abc import Callable

import pytest

from magnetar.client.core.threading_bridge import NoLock
from magnetar.client.producing.outbox import KeyedOutbox, Outbox, ignore
from magnetar.client.producing.outgoing import Outgoing


class Handover:
    def lock_and_signal(self) -> tuple[NoLock, None]:
        return NoLock(), None

    def wake(self, function: Callable[[], object]) -> None:
        pass


def outbox(kind: type[Outbox], *, batching: bool) -> Outbox:
    return kind(Handover(), lambda: None, pending_max=100, batching=batching, messages_max=100, bytes_max=10_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Outbox, KeyedOutbox])
@pytest.mark.parametrize("batching", [True, False])
def test_plain_payloads_and_those_with_attributes_count_their_bytes_alone(kind: type[Outbox], batching: bool) -> None:
    box = outbox(kind, batching=batching)
    box.add(b"12345", ignore)
    box.extend([b"123", b"", b"1"], 0, ignore)
    box.add_with(Outgoing(b"1234567", {"a": "long property"}, partition_key="key"), ignore)
    box.add(b"12", ignore)
    box.extend([b"1"], 0, ignore)
    box.seal()
    batches, _ = box.take()
    assert sum(batch.size_bytes for batch in batches) == 19
    assert sum(len(batch.callbacks) for batch in batches) == 7
