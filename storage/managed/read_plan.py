"""What a bulk read of a topic is told: which entries there are, in which ledgers, and what keeps them."""

from typing import NamedTuple

from ...protocol.message_id import Position
from ..metadata.ledger_metadata import LedgerMetadata


class BulkReadPlan(NamedTuple):
    """A bulk read: acknowledged entries `first`…`last` (inclusive), the ledgers that hold them, and their pin.

    `first` > `last` when there is nothing; then `ledgers` is empty and there is no pin.
    """

    first: Position
    last: Position
    ledgers: tuple[LedgerMetadata, ...]
    pin: str | None
