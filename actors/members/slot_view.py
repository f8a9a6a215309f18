"""Who owns which slot, as a member knows it: a copy of the coordinator's table, for look-ups without a question.

States, by what the view has of the present coordinator's word:

| state | what it answers | ends with |
| --- | --- | --- |
| listing | as before, and it keeps changes back | the listing: *complete* |
| complete | the coordinator's word, up to `number` | a new connection (`listing_began`): *listing*; a gap: *gapped* |
| gapped | as before | the next listing |

- Each change has the next number. The listing has the number of the last change that is in it. Changes that arrive
  before the listing are kept back, at most `KEPT_BACK_MAX`; those that are not in it follow it.
- A change with another number than the next one was lost, or comes twice. An older one is passed over. A gap is never
  bridged: the changes behind it are passed over, and the caller asks for a new listing.
- An owner is never replaced by one with a lower epoch. A listing of a coordinator that was superseded cannot bring an
  old owner back. It takes the rest.

Without a connection the view stays as it is.
"""

import enum
from collections.abc import Collection, Mapping

from ...protocol.slots import is_slot_count, slot_of
from ...protocol.topics import TopicName
from ...runtime.transitions import check_transition
from ...storage.metadata.slot_rows import UNOWNED, SlotEntry, SlotRows

KEPT_BACK_MAX = 1000
"""Changes that wait for a listing. One more, and another listing is needed."""


class ViewState(enum.Enum):
    """See the module and `TRANSITIONS`."""

    LISTING = enum.auto()
    COMPLETE = enum.auto()
    GAPPED = enum.auto()


TRANSITIONS: Mapping[ViewState, Collection[ViewState]] = {
    ViewState.LISTING: (
        ViewState.COMPLETE,  # the listing is here, and no change is missing behind it
        ViewState.GAPPED,  # the listing is here, and a change behind it is missing
    ),
    ViewState.COMPLETE: (
        ViewState.LISTING,  # the member registers over a new connection
        ViewState.GAPPED,  # a change did not have the next number
    ),
    ViewState.GAPPED: (
        ViewState.LISTING,  # a new listing was asked for
    ),
}


class SlotView:
    """See the module. What `take_listing` and `take_changes` return is what is different now."""

    def __init__(self, slots: int) -> None:
        assert is_slot_count(slots)
        self.slots = slots
        self.state = ViewState.LISTING
        self.number = 0
        self._entries = [UNOWNED] * slots
        self._exceptions: dict[str, SlotEntry] = {}
        self._kept_back: dict[int, SlotRows] = {}

    def entry_of(self, topic: TopicName) -> SlotEntry:
        """Who owns a partition or plain topic."""
        entry = self._entries[slot_of(topic, self.slots)]
        if self._exceptions:
            exception = self._exceptions.get(topic.full)
            if exception is not None and exception.epoch > entry.epoch:
                return exception
        return entry

    def get(self, slot: int) -> SlotEntry:
        return self._entries[slot]

    @property
    def exceptions(self) -> Mapping[str, SlotEntry]:
        """By the full name of the topic."""
        return self._exceptions

    def listing_began(self) -> None:
        """From here on changes belong to the listing that is asked for."""
        if self.state is not ViewState.LISTING:
            self._become(ViewState.LISTING)
        self._kept_back = {}

    def take_listing(self, number: int, rows: SlotRows) -> SlotRows:
        """The whole table as it was behind change `number`, then the changes that were kept back."""
        entries, exceptions = self._replace(rows.entries, dict(rows.exceptions))
        for topic in [topic for topic in self._exceptions if topic not in rows.exceptions]:
            exceptions[topic] = SlotEntry(None, self._exceptions.pop(topic).epoch)
        self.number = number
        self._become(ViewState.COMPLETE)
        kept_back, self._kept_back = self._kept_back, {}
        for one in sorted(kept_back):
            changed = self.take_changes(one, kept_back[one])
            entries.update(changed.entries)
            exceptions.update(changed.exceptions)
        return SlotRows(entries, exceptions)

    def take_changes(self, number: int, rows: SlotRows) -> SlotRows:
        """The change with this number. Look at `state` afterwards: GAPPED says that a listing is needed."""
        if self.state is ViewState.LISTING:
            if len(self._kept_back) < KEPT_BACK_MAX:
                self._kept_back[number] = rows
            # else the number is missing behind the listing
        elif self.state is ViewState.COMPLETE and number > self.number + 1:
            self._become(ViewState.GAPPED)
        elif self.state is ViewState.COMPLETE and number == self.number + 1:
            self.number = number
            return SlotRows(*self._replace(rows.entries, rows.exceptions))
        return SlotRows()

    def _replace(
        self, entries: Mapping[int, SlotEntry], exceptions: Mapping[str, SlotEntry]
    ) -> tuple[dict[int, SlotEntry], dict[str, SlotEntry]]:
        changed = {slot: one for slot, one in entries.items() if one.epoch > self._entries[slot].epoch}
        for slot, one in changed.items():
            self._entries[slot] = one
        others: dict[str, SlotEntry] = {}
        for topic, one in exceptions.items():
            before = self._exceptions.get(topic)
            if one.owner is None:
                if before is not None:
                    del self._exceptions[topic]
                    others[topic] = one
            elif before is None or one.epoch > before.epoch:
                self._exceptions[topic] = others[topic] = one
        if changed and self._exceptions:
            for topic, one in list(self._exceptions.items()):
                slot = slot_of(TopicName.parse(topic), self.slots)
                if slot in changed and one.epoch <= changed[slot].epoch:
                    others[topic] = SlotEntry(None, self._exceptions.pop(topic).epoch)
        return changed, others

    def _become(self, state: ViewState) -> None:
        check_transition(TRANSITIONS, "the view of the slots", self.state, state)
        self.state = state
