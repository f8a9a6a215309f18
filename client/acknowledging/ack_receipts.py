"""Receipts of acknowledgements: with `ack_receipt_enabled`, a call that acknowledges waits for the broker's answer.

The broker answers when the cursor is durable. Calls that are under way together share one ACK command, so that many
callers cost one answer. A call fails with the first error of the commands that it waits for: the broker's, or that the
connection ended. Nothing is sent a second time by itself: the message then comes again, and can be acknowledged again.
"""

import asyncio
from collections.abc import Callable, Sequence

from ...protocol.errors import Timeout, exception_for_server_error
from ...protocol.message_id import Position, unsigned64
from ...protocol.pulsar_pb2 import CommandAck, CommandAckResponse, MessageIdData
from ..core.connection import ClientConnection, ConsumerEndpoint
from ..core.context import Core
from ..core.registration import Registration

AckedPart = tuple[int, int, list[int], int]
"""Ledger, entry, ack set, batch size."""


class AckReceipts:
    """See the module. All is for the loop. `flush` sends what is collected, through `send` if there is a connection."""

    def __init__(
        self,
        core: Core,
        registration: Registration[ConsumerEndpoint],
        flush: Callable[[], None],
        waits: Callable[[], bool],
    ) -> None:
        """`waits` says whether something is collected that could not be sent."""
        self._core = core
        self._registration = registration
        self._flush = flush
        self._waits = waits
        self._outstanding: dict[asyncio.Task[None], int] = {}
        """Commands that are not answered yet, and how many entries they name."""
        self.failed = 0
        """Entries whose acknowledgement failed."""

    def __len__(self) -> int:
        """Commands that are not answered yet."""
        return len(self._outstanding)

    async def receive(self) -> None:
        """Until everything that was collected before the call has its receipt.

        Raises the broker's error, ConnectionClosed, Timeout, and why the subscription ended.
        """
        await asyncio.sleep(0)  # those who acknowledge in the same turn of the loop share the command
        self._flush()
        if self._waits():
            await self._core.lookup.retry("an acknowledgement", self._registration.ready_connection)
            self._flush()  # the subscription has done so; this is for what came since
        outstanding = [*self._outstanding]
        if outstanding:
            await asyncio.wait(outstanding)  # a caller that is cancelled does not cancel what others wait for
        for task in outstanding:
            task.result()

    def send(
        self,
        connection: ClientConnection,
        consumer_id: int,
        positions: Sequence[Position],
        parts: Sequence[AckedPart] = (),
        *,
        cumulative: bool = False,
    ) -> None:
        """Send an ACK, and wait for its answer."""
        command = CommandAck(
            consumer_id=consumer_id,
            ack_type=CommandAck.Cumulative if cumulative else CommandAck.Individual,
            request_id=connection.next_request_id(),
        )
        for ledger_id, entry_id in positions:
            command.message_id.append(MessageIdData(ledgerId=unsigned64(ledger_id), entryId=unsigned64(entry_id)))
        for ledger_id, entry_id, ack_set, size in parts:
            command.message_id.append(
                MessageIdData(ledgerId=ledger_id, entryId=entry_id, ack_set=ack_set, batch_size=size)
            )
        task = self._core.loop.create_task(self._answered(connection, command), name="acknowledgement receipt")
        self._outstanding[task] = len(command.message_id)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        entries = self._outstanding.pop(task)
        if not task.cancelled() and task.exception() is not None:  # those who wait for it get it; nobody may
            self.failed += entries

    async def _answered(self, connection: ClientConnection, command: CommandAck) -> None:
        timeout_s = self._core.timeout_s
        try:
            answer = await connection.request(command, command.request_id, timeout_s, CommandAckResponse)
        except TimeoutError:
            raise Timeout(f"the broker did not answer an acknowledgement within {timeout_s:g} s") from None
        if answer.HasField("error"):
            raise exception_for_server_error(answer.error, answer.message)
