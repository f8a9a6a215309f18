"""The Spark program of the data source's tests, which runs with PySpark 4: a loop over questions, a line of JSON each.

A question has the `options` of a read, perhaps a `schema`, and the `sql` about the table `t`. With a `directory` it is
a streaming query that reads what there is, and ends. Its checkpoint and its rows are kept there, and `t` has all of
them. With `write`, options of a write, the rows of `sql` are written, and those of a stream if there is a `directory`.
Without `options` the rows are those of `sql` alone. A question with `code` is a program to run, and the answer is what
it prints. Other answers have the rows, or the error. Bytes are written in hexadecimal.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from typing import IO, Any

from pyspark.sql import SparkSession

import magnetar

Answer = Callable[[SparkSession, dict[str, Any]], dict[str, Any]]


def plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def answer(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """What Spark says to one question."""
    reader = spark.read.format("magnetar").options(**question["options"])
    if "schema" in question:
        reader = reader.schema(question["schema"])
    frame = reader.load()
    frame.createOrReplaceTempView("t")
    found = spark.sql(question["sql"])
    rows = [[plain(value) for value in row] for row in found.collect()]
    return {
        "columns": frame.columns,
        "types": dict(frame.dtypes),
        "rows": rows,
        "tasks": frame.rdd.getNumPartitions() if question.get("tasks") else 0,
    }


def stream(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """Run a query once to the end of the topics; the answer also has the number of rows of each micro-batch, and what
    Spark told of its progress.
    """
    place = question["directory"]
    frame = spark.readStream.format("magnetar").options(**question["options"]).load()
    writing = frame.writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    query = writing.trigger(availableNow=True).start(f"{place}/rows")
    query.awaitTermination()
    spark.read.schema(frame.schema).parquet(f"{place}/rows").createOrReplaceTempView("t")
    rows = [[plain(value) for value in row] for row in spark.sql(question["sql"]).collect()]
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    return {
        "rows": rows,
        "batches": [one["numInputRows"] for one in progress],
        "progress": json.loads(json.dumps(progress, default=str)),
    }


def write(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a query through the data source."""
    if "options" in question:
        spark.read.format("magnetar").options(**question["options"]).load().createOrReplaceTempView("t")
    frame = spark.sql(question["sql"])
    if "tasks" in question:
        frame = frame.repartition(question["tasks"])
    frame.write.format("magnetar").options(**question["write"]).mode(question.get("mode", "append")).save()
    return {"rows": []}


def copy(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """Run a query once to the end of its topics that writes what `sql` says of their rows, through the data source."""
    spark.readStream.format("magnetar").options(**question["options"]).load().createOrReplaceTempView("t")
    writing = spark.sql(question["sql"]).writeStream.format("magnetar").options(**question["write"])
    writing = writing.option("checkpointLocation", question["directory"]).outputMode(question.get("mode", "append"))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    return {"rows": [], "batches": [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]}


def program(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """Run code with the names `spark` and `magnetar`; the answer has what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(question["code"], "program", "exec"), {"spark": spark, "magnetar": magnetar})
    return {"rows": [], "printed": printed.getvalue()}


def chosen(question: dict[str, Any]) -> Answer:
    """What answers a question."""
    if "code" in question:
        return program
    if "write" in question:
        return copy if "directory" in question else write
    return stream if "directory" in question else answer


def take_answers() -> IO[str]:
    """Where answers go: descriptor 1, which libraries print to no longer. What they print is no answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer_all(spark: SparkSession, answers: IO[str], choose: Callable[[dict[str, Any]], Answer]) -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        try:
            question = json.loads(line)
            found = choose(question)(spark, question)
        except Exception as error:  # it is the test's to judge
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


def main() -> None:
    """Answer with a Spark on this machine alone."""
    answers = take_answers()
    spark = (
        SparkSession.Builder()
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.dataSource.register(magnetar.spark.MagnetarDataSource)  # pyright: ignore[reportAttributeAccessIssue] (of 4)
    answer_all(spark, answers, chosen)


if __name__ == "__main__":
    main()
