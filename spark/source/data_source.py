"""`MagnetarDataSource`: the format `magnetar` of PySpark 4.2.

    spark.dataSource.register(magnetar.spark.MagnetarDataSource)
    frame = spark.read.format("magnetar").option("admin.url", "http://head:8080").option("topic", "flights").load()

Nothing is read before an action. Executors need neither Ray nor a client: they read ledgers from the bookies.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...bulk.message_table import schema_of
from ...protocol.errors import InvalidConfiguration
from .batch_reader import BatchReader
from .options import read_options
from .stream_reader import StreamReader


class MagnetarDataSource(DataSource):
    """A topic, or several, as a table. See `options` for what can be asked for."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "magnetar"

    def schema(self) -> StructType:
        """The columns that the option `columns` names, or all."""
        return from_arrow_schema(schema_of(read_options(self.options).columns))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read of the columns of `schema`: those of `schema()`, or fewer that the user has asked for."""
        return BatchReader(read_options(self.options), _columns_of(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """A streaming read of the columns of `schema`."""
        return StreamReader(read_options(self.options, streaming=True), _columns_of(schema))


def _columns_of(schema: StructType) -> list[str]:
    """The names of the columns. Raises InvalidConfiguration if one is unknown, or has another type."""
    columns = list(schema.fieldNames())
    wanted = from_arrow_schema(schema_of(columns))
    for field, given in zip(wanted.fields, schema.fields, strict=True):
        if field.dataType != given.dataType:
            kinds = f"{field.dataType.simpleString()}, not {given.dataType.simpleString()}"
            raise InvalidConfiguration(f"the column {field.name} has the type {kinds}")
    return columns
