"""The topic epoch is stored with the topic, survives its owner, and never falls."""

import pytest

from magnetar.protocol.errors import StaleEpoch
from support.stores.managed_ledger_kit import append, bodies, open_


async def test_the_next_owner_knows_the_epoch(cluster):
    first = await open_(cluster, epoch=1)
    assert first.topic_epoch.stored == -1
    await first.topic_epoch.raise_to(4)
    await append(first, bodies(3))
    await first.close()
    second = await open_(cluster, epoch=2)
    assert second.topic_epoch.stored == 4
    await second.close()


async def test_a_lower_epoch_is_not_written(cluster):
    managed = await open_(cluster)
    await managed.topic_epoch.raise_to(4)
    await managed.topic_epoch.raise_to(3)
    assert managed.topic_epoch.stored == 4
    await managed.close()


async def test_a_former_owner_cannot_raise_the_epoch_and_is_fenced(cluster):
    first, fenced = await open_(cluster, epoch=1), []
    first.on_fenced.append(fenced.append)
    second = await open_(cluster, epoch=2)
    with pytest.raises(StaleEpoch):
        await first.topic_epoch.raise_to(1)
    assert len(fenced) == 1 and isinstance(fenced[0], StaleEpoch)
    assert second.topic_epoch.stored == -1
    await first.close()
    await second.close()
