"""The tasks of a read of the data source: what its options say, put beside each planned split."""

from collections.abc import Mapping, Sequence

from ...bulk.access import ClusterAccess
from ...bulk.cluster_link import Pin
from ...bulk.decryption import action_named, keys_at
from ...bulk.read_plan import ReadSplit
from ...bulk.task_reading import TaskRead
from ...bulk.typed.choice import RowShape
from .options import ReadOptions


def tasks_of(
    options: ReadOptions,
    access: ClusterAccess,
    splits: Sequence[ReadSplit],
    pins: tuple[Pin, ...],
    shapes: Mapping[str, RowShape],
) -> list[TaskRead]:
    """The tasks of a planned read, in the order of its splits. `shapes` are the rows of each partition, by its name.

    Raises InvalidConfiguration if a key cannot be read.
    """
    keys = keys_at(options.private_key_path, action_named(options.crypto_failure_action))
    return [
        TaskRead(options.admin_url, access, part, shapes[part.topic], pins, options.pin_ttl_s, keys) for part in splits
    ]
