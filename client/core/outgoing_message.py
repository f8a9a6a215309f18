"""A message about to be sent, as an application's own choice of its partition, or its interceptor, sees it."""

from collections.abc import Mapping


class OutgoingMessage:
    """What routers and interceptors see of a message about to be sent; its methods are named as those of Message."""

    __slots__ = ("_content", "_event_timestamp", "_ordering_key", "_partition_key", "_properties")

    def __init__(
        self,
        content: bytes | None,
        properties: Mapping[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        event_timestamp: int | None,
    ) -> None:
        self._content = content
        self._properties = properties
        self._partition_key = partition_key
        self._ordering_key = ordering_key
        self._event_timestamp = event_timestamp

    def data(self) -> bytes:
        """The payload; empty for a null value."""
        return self._content or b""

    def properties(self) -> dict[str, str]:
        """The message's properties."""
        return dict(self._properties or {})

    def partition_key(self) -> str:
        """The message's key, empty if it has none."""
        return self._partition_key or ""

    def ordering_key(self) -> str:
        """The ordering key, empty if it has none."""
        return self._ordering_key or ""

    def event_timestamp(self) -> int:
        """Milliseconds, 0 if unset."""
        return self._event_timestamp or 0

    def has_null_value(self) -> bool:
        """Whether this is a null value (a tombstone)."""
        return self._content is None

    def changed(self, **fields: object) -> "OutgoingMessage":
        """Return a copy with other values.

        Args:
            fields: Any of `content`, `properties`, `partition_key`, `ordering_key`, `event_timestamp`.

        Returns:
            The copy.
        """
        return OutgoingMessage(**{**self.fields(), **fields})  # type: ignore[arg-type]

    def fields(self) -> dict[str, object]:
        """Return what `send` was given.

        Returns:
            The arguments by name.
        """
        return {
            "content": self._content,
            "properties": self._properties,
            "partition_key": self._partition_key,
            "ordering_key": self._ordering_key,
            "event_timestamp": self._event_timestamp,
        }
