"""The bytes of publishes under way that one broker allows itself, all connections together."""

from ..rates.publish import Holdable, Holder


class PublishBudget(Holder):
    """Above `bytes_max`, connections that publish are paused; all continue when half of it is free again."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._paused: dict[Holdable, None] = {}

    def take(self, connection: Holdable, size_bytes: int) -> None:
        """A publish begins."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max and connection not in self._paused:
            self._paused[connection] = None
            connection.hold(self)

    def give(self, size_bytes: int) -> None:
        """A publish ended."""
        self.used_bytes -= size_bytes
        if self._paused and self.used_bytes <= self.bytes_max // 2:
            paused, self._paused = self._paused, {}
            for connection in paused:
                connection.release(self)

    def forget(self, connection: Holdable) -> None:
        """A connection is gone; what it published is still given back entry by entry."""
        self._paused.pop(connection, None)
