"""The data key of a producer that encrypts: loaded before the producer opens, renewed while it lives.

Key readers may take their time (files, services), so they run on a thread. A renewal that fails is tried again after
`RENEWAL_RETRY_S`; until then the former key stays in use.
"""

import asyncio
import logging

from ...protocol.errors import CryptoError
from ..core.context import Core
from ..crypto.encryption import RENEWAL_RETRY_S, RENEWAL_S, MessageEncryptor

logger = logging.getLogger(__name__)


class KeyRenewal:
    """See the module. For the loop."""

    def __init__(self, core: Core, encryptor: MessageEncryptor, topic: str) -> None:
        self._core = core
        self._encryptor = encryptor
        self._topic = topic
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def load(self, *, required: bool) -> None:
        """Make the first key. Raises CryptoError if it is `required` and cannot be made."""
        try:
            await self._core.environment.offload.run(self._encryptor.renew)
        except CryptoError as error:
            if required:
                raise
            logger.warning("the producer on %s sends unencrypted messages: %s", self._topic, error)
            self._again(RENEWAL_RETRY_S)
        else:
            self._again(RENEWAL_S)

    def close(self) -> None:
        """Renew no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _again(self, delay_s: float) -> None:
        if not self._closed:
            self._timer = self._core.loop.call_later(delay_s, self._start)

    def _start(self) -> None:
        if not self._core.tasks.closed:
            self._core.tasks.spawn(self._renew(), f"renew the data key of a producer on {self._topic}")

    async def _renew(self) -> None:
        try:
            await self._core.environment.offload.run(self._encryptor.renew)
        except CryptoError as error:
            logger.warning("the producer on %s keeps its data key: %s", self._topic, error)
            self._again(RENEWAL_RETRY_S)
        else:
            self._again(RENEWAL_S)
