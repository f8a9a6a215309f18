"""Names for producers whose clients leave it to the broker."""

from ...protocol.errors import ServiceUnitNotReady


class ProducerNames:
    """Names that no other producer in the cluster has or had: a prefix that is the broker's own, and a number.

    The prefix is the cluster's name with a number that the metadata store gives out once.
    """

    def __init__(self) -> None:
        self.prefix = ""
        self._count = 0

    def new(self) -> str:
        """The next name. Raises ServiceUnitNotReady while there is no prefix."""
        if not self.prefix:
            raise ServiceUnitNotReady("this broker is joining the cluster")
        self._count += 1
        return f"{self.prefix}-{self._count}"
