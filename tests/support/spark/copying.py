"""The Spark program that tests kill: a streaming query that copies topics into a topic, each row once, and then ends.

It takes one argument, a JSON object: `read` and `write`, options of the data source; `sql`, about the table `t`;
`checkpoint`, a directory; `master`. Executors are processes of their own with a `local-cluster` master.
"""

import json
import sys

from pyspark.sql import SparkSession

import magnetar


def main() -> None:
    """Run the query to the end of its topics."""
    given = json.loads(sys.argv[1])
    spark = (
        SparkSession.Builder()
        .master(given["master"])
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.executor.memory", "512m")
        .config("spark.task.maxFailures", "20")
        .getOrCreate()
    )
    spark.dataSource.register(magnetar.spark.MagnetarDataSource)  # pyright: ignore[reportAttributeAccessIssue] (of 4)
    spark.readStream.format("magnetar").options(**given["read"]).load().createOrReplaceTempView("t")
    rows = spark.sql(given["sql"]).writeStream.format("magnetar").options(**given["write"])
    query = rows.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
