"""Which tasks were running in replicas that died, so that a task that kills its replica ends as FAILURE.

Brokers do not count deliveries that end with their consumer, and Pulsar's do not, either. So the replicas count:

1. A replica keeps a note on its node: the ids of the tasks whose handlers run. It is written before a handler begins,
   and costs no synced write.
2. When the process dies, the note stays. The next replica of the queue that starts on the node reads it before it takes
   tasks. So does a replica there that is about to run a task of which a death is known.
3. The reader stores one *death* for each task of the note in the topic of statuses, and then removes the note. All
   replicas of all nodes read that topic before they run a task.
4. A task with a death runs alone in its replica. When its replica dies then, no other task is to blame. A death while
   several tasks ran counts for none of them.
5. A task that ran alone in more than `allowed_deaths` replicas that died is not run again.

What may happen meanwhile, and what follows:

- The reader dies before it has removed the note: another one stores the same deaths again. A death has the name of the
  note and of the task, so it counts once.
- The status topic cannot be written: the note stays for the next reader.
- Other replicas get the task before the note is read: they die, too, each with a note of its own. Each node has notes
  of at most those replicas that ran at once, because each replica that starts reads those before it. So the count
  comes late, and always comes.
- The node is gone with its notes, or the note could not be written: nobody is to blame for that death.
- A replica is told to stop, as when Serve scales down: it withdraws its note first, so what is killed then is not to
  blame. A replica that is killed by others without a word counts. So an innocent task fails only when that happens
  so often while it runs alone.
"""

import asyncio
import hashlib
import logging
import tempfile
from pathlib import Path
from typing import cast

from ..protocol.errors import MagnetarError
from ..runtime.environment import Environment
from ..runtime.process_note import LeftNote, ProcessNote, left_notes
from .statuses import Statuses

logger = logging.getLogger("ray.serve")

ALONE_MIN = 1
"""Deaths alone that a task may cause in any case: the first one may have been somebody else's."""
ALONE_MAX = 100
"""Deaths alone that a task may cause where errors have no bound."""


class ReplicaDied(Exception):
    """What is told of a task that killed its replicas."""


def allowed_deaths(max_retries: int | None) -> int:
    """In how many dying replicas a task may have run alone, and is run again."""
    return ALONE_MAX if max_retries is None else min(max(max_retries, ALONE_MIN), ALONE_MAX)


class DeathCount:
    """See the module. For the loop of the client."""

    def __init__(self, env: Environment, cluster: str, queue: str, statuses: Statuses) -> None:
        """`cluster` tells queues of the same name apart whose replicas share a node."""
        self._env = env
        self._statuses = statuses
        self._directory = Path(tempfile.gettempdir())
        self._prefix = f"magnetar-serve-{hashlib.sha256(f'{cluster} {queue}'.encode()).hexdigest()[:32]}-"
        path = self._directory / f"{self._prefix}{env.random.hex(16)}"
        self._note = ProcessNote(path, f"tasks of {queue} that kill this replica cannot be counted")
        self._running: list[str] = []
        self._is_told_to_stop = False
        self._reading = asyncio.Lock()

    def begin(self, task_id: str) -> None:
        """The handler of this task is about to run."""
        self._running.append(task_id)
        self._write()

    def end(self, task_id: str) -> None:
        """The handler has ended."""
        self._running.remove(task_id)
        self._write()

    def _write(self) -> None:
        if self._running and not self._is_told_to_stop:
            self._note.write(self._running)
        else:
            self._note.clear()

    def withdraw(self) -> None:
        """This replica was told to stop: nothing that happens to it from now on is its tasks' fault."""
        self._is_told_to_stop = True
        self._write()

    def close(self) -> None:
        """Remove the note."""
        self._note.close()

    async def read_notes(self) -> None:
        """Store the deaths of replicas that have left a note on this node."""
        async with self._reading:
            notes = await asyncio.to_thread(lambda: list(left_notes(self._directory, self._prefix)))
            try:
                for note in notes:
                    await self._store(note)
                    note.remove()
            except (MagnetarError, OSError) as error:
                logger.warning("which tasks ran in replicas that died cannot be stored now: %s", error)
            finally:
                for note in notes:
                    note.close()

    async def _store(self, note: LeftNote) -> None:
        value = await asyncio.to_thread(note.value)
        found = cast("list[object]", value) if isinstance(value, list) else []
        tasks = [one for one in found if isinstance(one, str)]
        if tasks:
            logger.warning("a replica died while it ran: %s", ", ".join(tasks))
        at = self._env.clock.now_ms() / 1_000
        for task_id in tasks:
            await self._statuses.publish_death(task_id, note.path.name, at, alone=len(found) == 1)
