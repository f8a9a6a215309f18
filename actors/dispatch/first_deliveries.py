"""Which deliveries of a subscription are the first ones of their entries. Consumers may ask to be told.

A redelivery count of 0 does not say so. It is not raised when a consumer goes away, and a new owner begins to count
again, as in Pulsar. So each subscription keeps a *mark*, the highest position that may have been sent to a consumer.
A delivery behind the mark is the first one.

Invariant: no entry behind the mark was sent to a consumer of this subscription, by this owner of the topic or by one
before it.

1. An owner sends only what is confirmed. The next owner fences and recovers all ledgers before it makes any
   subscription, so all that earlier owners sent lies up to `last_confirmed` then. The mark begins there. Beginning at
   the read position would be wrong: what lies behind it was perhaps sent, and not acknowledged.
2. A subscription that is made later begins at the end of the topic then, too. All that an earlier subscription of its
   name was sent is in front of that.
3. The mark moves before entries are sent, to the last of them, and never back. It belongs to the subscription, since
   a dispatcher lives only as long as there are consumers. So no rewind, seek, redelivery or consumer that leaves
   matters to it. What a gate held, or what was set aside, is behind the mark or in front of it like any other entry.
4. Ledgers that roll have rising ids, so positions are in the order of the topic.

What follows: an entry is sent as a first delivery at most once, by all owners. What is sent after another one of a
later position is never called first, though it may be.

The limit: an owner that was fenced and does not know it yet may still send what was confirmed before the fence. If it
calls that the first delivery, the next owner may have sent the same entry already, not called so. No owner can know
this without asking others. Who relies on the mark must know how old a message may be at most; see `serve.worker`.

Cost: one comparison for each delivery, which has many entries.
"""

from ...protocol.message_id import Position
from .consumer import Delivery


class FirstDeliveries:
    """The mark of one subscription. See the module."""

    __slots__ = ("_mark",)

    def __init__(self, last_confirmed: Position) -> None:
        self._mark = last_confirmed

    def move(self, deliveries: list[Delivery]) -> Position:
        """These are about to be sent. Returns the mark that holds for them: what is behind it comes for the first
        time."""
        mark = self._mark
        for delivery in deliveries:
            last = delivery.entries[-1][0]  # the entries of a delivery are in order
            if last > self._mark:
                self._mark = last
        return mark
