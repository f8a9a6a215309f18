"""Compare-and-set whose outcome is certain: the lost answer of a metadata write is settled by asking again.

A write whose answer was lost may have landed, may still land, or never will. Sending the same compare-and-set again
settles it: only one of the two can succeed. When the second finds another version, the record itself shows whether the
first one did it. This needs values that no other writer would write, which all records here are (they carry ledger ids,
epochs or closing positions).
"""

import asyncio

from ...protocol.errors import (
    BadVersion,
    ConditionFailed,
    MagnetarError,
    MetadataUnavailable,
    NoSuchKey,
    OutcomeUnknown,
    StaleEpoch,
)
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import Environment
from .store import Guard, MetadataStore, Write, one_result

RETRY_INITIAL_S = 0.02
RETRY_MAX_S = 0.5
SETTLE_LIMIT_S = 30.0


async def put_certain(
    env: Environment,
    store: MetadataStore,
    key: str,
    value: bytes,
    expected_version: int | None,
    *,
    needs: Guard | None = None,
    also: Guard | None = None,
    settle_limit_s: float = SETTLE_LIMIT_S,
) -> int:
    """`store.put`, with an unknown outcome settled by repetition for up to `settle_limit_s`. Returns the new version.

    `needs` and `also` are those of `Write`; ConditionFailed says that the write did not happen and never will.

    Raises what `put` raises. BadVersion, KeyExists and NoSuchKey: the record is not as we wrote it; after a lost answer
    it may have been, until another writer replaced it. MetadataUnavailable and other errors say that nothing was
    executed. OutcomeUnknown: the store did not answer for the whole time after a lost answer.
    """
    backoff = LimitedBackoff(env.random, RETRY_INITIAL_S, RETRY_MAX_S, settle_limit_s)
    doubt: OutcomeUnknown | None = None
    while True:
        try:
            try:
                if needs is None:
                    return await store.put(key, value, expected_version)
                return one_result(await store.write_many([Write(key, value, expected_version, needs, also)]))
            except (BadVersion, NoSuchKey):
                if doubt is None:
                    raise
                record = await store.get(key)
                if record is None or record.value != value:
                    raise
                if expected_version is not None and record.version != expected_version + 1:
                    raise
                return record.version
        except (BadVersion, NoSuchKey, ConditionFailed):
            raise
        except OutcomeUnknown as error:
            doubt = error
        except MagnetarError as error:  # this try was refused; the one in doubt may have landed all the same
            doubt = _still_in_doubt(doubt, error)
        delay_s = backoff.next_delay_s()
        if delay_s is None:
            raise doubt
        await asyncio.sleep(delay_s)


def _still_in_doubt(doubt: OutcomeUnknown | None, refusal: MagnetarError) -> OutcomeUnknown:
    if doubt is None:
        raise refusal
    if isinstance(refusal, StaleEpoch):  # the store takes nothing more from us
        raise doubt from refusal
    return doubt


async def delete_certain(env: Environment, store: MetadataStore, key: str) -> bool:
    """Delete a record of whatever version. Returns whether it was there (True when in doubt).

    Each try names the version that it found. A try that is executed late, after a deletion and a new creation, finds
    another version and changes nothing.

    Raises MetadataUnavailable when nothing was executed, OutcomeUnknown like `put_certain`, BadVersion when the record
    changes all the time.
    """
    backoff = LimitedBackoff(env.random, RETRY_INITIAL_S, RETRY_MAX_S, SETTLE_LIMIT_S)
    doubt: OutcomeUnknown | None = None
    changed: BadVersion | None = None
    while True:
        try:
            found = await store.get(key)
            if found is None:
                return doubt is not None
            await store.delete(key, found.version)
            return True
        except NoSuchKey:
            return doubt is not None
        except BadVersion as error:
            changed = error  # since it was read: look again
        except OutcomeUnknown as error:
            doubt = error
        except MagnetarError as error:
            doubt = _still_in_doubt(doubt, error)
        delay_s = backoff.next_delay_s()
        if delay_s is None:
            raise doubt or changed or MetadataUnavailable(f"{key} could not be deleted in time")
        await asyncio.sleep(delay_s)
