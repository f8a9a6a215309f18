"""I5 for a source that sends its numbered records again: each stands in its topic once. See `workloads.numbered`.

It looks at receipts and at what one consumer is given, so it works in a topic that is trimmed meanwhile.
"""

from magnetar.client.core.message_id import MessageId

from .history import History, Place, place_of


class NumberWatch:
    """See the module. `topic` is for the sentences."""

    def __init__(self, history: History, topic: str) -> None:
        self.confirmed = 0
        """All numbers below have their receipts."""
        self.highest = -1
        """The highest number with a receipt."""
        self.missing: dict[int, bool] = {}
        """Numbers with a receipt that the consumer was not given yet, and whether they were called duplicates."""
        self._history = history
        self._topic = topic
        self._receipts: dict[int, None] = {}
        self._places: dict[int, Place] = {}
        self._last: dict[str, int] = {}
        """Of each partition: the highest number that was given from it."""

    def has_receipt(self, number: int, message_id: MessageId) -> None:
        """The source learned that a record is stored. A duplicate's receipt has no place."""
        is_duplicate = message_id[0] < 0
        self._history.counts["numbers called duplicates" if is_duplicate else "numbers stored"] += 1
        if number not in self._places:
            self.missing[number] = self.missing.get(number, True) and is_duplicate
        self._receipts[number] = None
        self.highest = max(self.highest, number)
        while self.confirmed in self._receipts:
            self.confirmed += 1

    def was_given(self, partition: str, number: int, message_id: MessageId) -> None:
        """The consumer has it, perhaps again."""
        place = place_of(partition, message_id)
        known = self._places.setdefault(number, place)
        if known != place:
            self._history.violated(f"I5: number {number} stands in {self._topic} at {known} and at {place}")
        elif number not in self.missing and number not in self._receipts:
            self._history.counts["numbers given before their receipts"] += 1
        last = self._last.get(partition, -1)
        if number > last:
            self._last[partition] = number
        elif place > self._places.get(last, place):
            self._history.violated(f"I4: number {number} stands behind {last} in {partition}")
        self.missing.pop(number, None)

    def check_nothing_missing(self) -> None:
        """The consumer was given all that it will be given."""
        for number, is_duplicate in self.missing.items():
            if is_duplicate:
                self._history.violated(f"I5: number {number}, called a duplicate, is not in {self._topic}")
            else:
                self._history.violated(f"I1: number {number}, which has its receipt, is not in {self._topic}")
