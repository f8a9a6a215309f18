"""The Spark 4 program of `spark_write`: writes rows that are in memory, once for each line that it reads.

Its arguments are the brokers' URL, the topic, and how many rows, bytes of a row, tasks and rounds. It prints the
seconds of each round.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

import magnetar


def main() -> None:
    """Make the rows, then write them as often as asked."""
    url, topic = sys.argv[1:3]
    rows, size, tasks, rounds = map(int, sys.argv[3:])
    spark = (
        SparkSession.Builder()
        .master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(magnetar.spark.MagnetarDataSource)  # pyright: ignore[reportAttributeAccessIssue] (of 4)
    value = f"CAST(lpad(CAST(id AS STRING), {size}, 'x') AS BINARY) AS value"
    frame = spark.range(0, rows, 1, tasks).selectExpr(value).cache()
    frame.count()
    for _ in range(rounds):
        sys.stdin.readline()
        begin = time.perf_counter()
        frame.write.format("magnetar").option("service.url", url).option("topic", topic).mode("append").save()
        print(json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
