"""Pickling of items in a process that uses Ray."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# Ray's pickler and references have no types.

import io
from functools import cache
from typing import Any


@cache
def _pickler() -> Any:
    """Ray's own pickler, which takes functions and classes of `__main__` too, but no references to objects of Ray."""
    import ray
    from ray import cloudpickle

    kind: Any = cloudpickle.Pickler

    class ItemPickler(kind):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, ray.ObjectRef):
                raise TypeError(
                    f"the item holds {obj}, a reference to an object of Ray, which ends with its owner: put the object "
                    "itself into the queue"
                )
            return super().reducer_override(obj)

    return ItemPickler


def dumps(item: object) -> bytes:
    """The item as bytes that `pickle.loads` takes. Raises TypeError."""
    with io.BytesIO() as buffer:
        _pickler()(buffer).dump(item)
        return buffer.getvalue()
