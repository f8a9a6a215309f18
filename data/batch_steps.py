"""What an application does with each batch of a followed topic, before it gets it: one Ray task for each batch."""

# Ray and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from ray.data.block import BlockAccessor


@dataclass(frozen=True)
class BatchStep:
    """A function over batches, or a condition on rows. Ray pickles it to the tasks."""

    fn: Callable[..., object] | pc.Expression
    batch_format: str | None
    """What a function over batches takes. None: the step is a condition, on a row as a dictionary or on columns."""
    fn_kwargs: Mapping[str, object]
    num_cpus: float

    def apply(self, table: pa.Table) -> pa.Table:
        """What comes of a batch. Raises what the function raises."""
        if isinstance(self.fn, pc.Expression):
            return table.filter(self.fn)
        if self.batch_format is None:
            kept = [bool(self.fn(row)) for row in BlockAccessor.for_block(table).iter_rows(public_row_format=True)]
            return table.filter(pa.array(kept, pa.bool_()))
        batch = BlockAccessor.for_block(table).to_batch_format(self.batch_format)
        made = BlockAccessor.batch_to_block(self.fn(batch, **self.fn_kwargs))
        return BlockAccessor.for_block(made).to_arrow()


def apply_steps(steps: Sequence[BatchStep], table: pa.Table) -> pa.Table:
    """All steps, one after the other. None is called for a batch without rows."""
    for step in steps:
        if not table.num_rows:
            break
        table = step.apply(table)
    return table
