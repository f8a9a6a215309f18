"""I14: a version of a topic's schema keeps its meaning. Stands beside the metadata.

- The versions that a topic gets are numbered one after the other, deletions included.
- A version never stands for another definition, and no definition has two versions between two deletions.
- A version stays until all schemas are deleted.
"""

from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.schema_record import SchemaRecord, StoredSchema
from magnetar.storage.metadata.store import Versioned

from .history import History
from .store_watch import who


class SchemaWatch:
    """See the module. Of one topic, named without a partition."""

    def __init__(self, history: History, topic: TopicName) -> None:
        self.topic = topic
        self.definitions: list[bytes | None] = []
        """By version; None for a deletion."""
        self._history = history
        self._key = metadata_keys.schema(topic.path)

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record has changed."""
        if key == self._key:
            self.is_now(SchemaRecord.unpack(after.value).versions if after is not None else ())

    def is_now(self, versions: tuple[StoredSchema, ...]) -> None:
        """The record has these versions."""
        for one in versions:
            definition = None if one.deleted else one.data
            if one.version == len(self.definitions):
                self._history.counts["schemas deleted" if one.deleted else "schemas added"] += 1
                self.definitions.append(definition)
            elif one.version > len(self.definitions):
                self._violated(f"version {one.version} follows version {len(self.definitions) - 1}")
            elif self.definitions[one.version] != definition:
                self._violated(
                    f"version {one.version} stands for {definition!r}, before {self.definitions[one.version]!r}"
                )
        present = {one.version: one.data for one in versions if not one.deleted}
        for version in range(self.first, len(self.definitions)):
            if version not in present:
                self._violated(f"version {version} is gone")
        if len(set(present.values())) != len(present):
            self._violated(f"a definition has two of the versions {list(present)}")

    @property
    def first(self) -> int:
        """The first version since the last deletion."""
        deletions = [version for version, definition in enumerate(self.definitions) if definition is None]
        return deletions[-1] + 1 if deletions else 0

    def check_message(self, version: bytes, written_with: bytes, what: str) -> None:
        """A stored message says that version, and its producer had that definition."""
        number = int.from_bytes(version, "big") if version else -1
        if not 0 <= number < len(self.definitions):
            self._violated(f"{what} has the version {version!r}, which never was")
        elif self.definitions[number] != written_with:
            self._violated(f"{what} has the version {number}, and was written with {written_with!r}")

    def _violated(self, what: str) -> None:
        self._history.violated(f"I14: {who()}, {self._key}: {what}")
