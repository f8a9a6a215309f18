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
from pyspark.sql.types import StructType

from .batch_reader import BatchReader
from .columns import columns_of, frame_schema
from .options import read_options
from .stream_reader import StreamReader


class MagnetarDataSource(DataSource):
    """A topic, or several, as a table. See `options` for what can be asked for."""

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
