"""`MagnetarDataSource`: the format `magnetar` of PySpark 4.2.

    spark.dataSource.register(magnetar.spark.MagnetarDataSource)
    frame = spark.read.format("magnetar").option("admin.url", "http://head:8080").option("topic", "flights").load()

Nothing is read before an action. Executors need neither Ray nor a client: they read ledgers from the bookies.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ...bulk.writing.columns import TOPIC, check_columns
from ...bulk.writing.publisher import WritePlan
from ...bulk.writing.typed_values import arrow_schema
from ...protocol.errors import InvalidConfiguration
from .batch_reader import BatchReader
from .batch_writer import BatchWriter
from .columns import columns_of, frame_schema
from .options import read_options
from .stream_reader import StreamReader
from .stream_writer import StreamWriter
from .write_options import typed_as, write_options


class MagnetarDataSource(DataSource):
    """A topic, or several, as a table. See `options` and `write_options` for what can be asked for."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "magnetar"

    def schema(self) -> StructType:
        """The columns of the topic's schema and those of its messages, or those that the option `columns` names."""
        return frame_schema(read_options(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read of the columns of `schema`: those of `schema()`, or fewer that the user has asked for."""
        options = read_options(self.options)
        return BatchReader(options, columns_of(options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read of the columns of `schema`."""
        options = read_options(self.options, streaming=True)
        return StreamReader(options, columns_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write of rows of that schema. Raises InvalidConfiguration for rows that make no messages."""
        if overwrite:
            raise InvalidConfiguration("a topic cannot be overwritten: write with mode('append'), or truncate it first")
        plan = replace(write_options(self.options), schema=typed_as(self.options, arrow_schema(schema)))
        _check_rows(schema, plan)
        return BatchWriter(plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A streaming write. With the output mode `complete` each micro-batch publishes all rows."""
        typed = typed_as(self.options, arrow_schema(schema))
        _check_rows(schema, replace(write_options(self.options, query="the query"), schema=typed))
        return StreamWriter(self.options, typed)


def _check_rows(schema: StructType, plan: WritePlan) -> None:
    """Raise InvalidConfiguration for columns that make no messages."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    check_columns(kinds, plan.order_by, typed=plan.schema is not None)
    missing = [name for name in plan.order_by if name not in kinds]
    if missing:
        raise InvalidConfiguration(f"orderBy names the column `{missing[0]}`, which the rows do not have")
    if plan.topic is None and TOPIC not in kinds:
        raise InvalidConfiguration(f"where do the rows go? Give the option topic, or a column `{TOPIC}`")
