"""I2: a namespace that is deleted by force leaves nothing behind. Stands beside the metadata.

- From the mark in its record on, a namespace goes: the mark is never taken back.
- The record goes last: no topic of the namespace is stored any longer.

What is still stored for its topics when all deletions have had time to finish is in `leftovers`.
"""

from magnetar.actors.policies.record import NamespaceRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned

from ..world.metadata import WatchedRecords
from .history import History
from .store_watch import who


class NamespaceWatch:
    """See the module. `namespace` is `tenant/name`."""

    def __init__(self, history: History, records: WatchedRecords, namespace: str) -> None:
        self.created = 0
        """How often the namespace was created."""
        self.marked = False
        self._history = history
        self._records = records
        self._key = metadata_keys.namespace(namespace)
        self._topics = f"{metadata_keys.TOPICS_PREFIX}persistent/{namespace}/"
        self._part = f"/{namespace}/"

    @property
    def exists(self) -> bool:
        """Whether the namespace has a record, with or without a mark."""
        return self._key in self._records.by_key

    def leftovers(self) -> list[str]:
        """What is stored for topics of the namespace."""
        return [key for key in self._records.by_key if self._part in key]

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record has changed."""
        if key != self._key:
            return
        if before is None:
            self.created += 1
        was_marked, self.marked = self.marked, after is not None and NamespaceRecord.read(key, after.value).deleted
        if after is None:
            self._history.counts["namespaces deleted"] += 1
            left = [one for one in self._records.by_key if one.startswith(self._topics)]
            if left:
                self._history.violated(f"I2: {who()} deletes {key}, and leaves {left[:3]}")
        elif was_marked and not self.marked:
            self._history.violated(f"I2: {who()} takes the mark of {key} back")
