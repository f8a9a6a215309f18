"""The program of the tests of a session of PySpark 4 on Ray. All of it runs in build/spark4: Ray, a cluster, Spark.

It first says where the cluster is and what runs. Then it answers the questions of `driver`, and two others. With
`read_topic` the table `t` is what `magnetar.spark.read_topic` makes of that topic. The rows of `sql` are the answer, or
go to the topic `write_topic`. With `stop` the session ends.
"""

import json
import logging
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import ray
from pyspark.sql import SparkSession

import magnetar
from magnetar.runtime.ray_calls import is_name_taken
from magnetar.spark.raydp_session import MASTER_SUFFIX
from support.spark import driver

NAME = "ray-driver"
SPARK_CONFIGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


def read_topic(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """The rows of a read that finds the cluster through Ray."""
    frame = magnetar.spark.read_topic(spark, question["read_topic"])
    frame.createOrReplaceTempView("t")
    rows = spark.sql(question["sql"])
    if "write_topic" in question:
        return {"written": magnetar.spark.write_topic(rows, question["write_topic"]).rows}
    return {"rows": [[driver.plain(value) for value in row] for row in rows.collect()]}


def stop(spark: SparkSession, question: dict[str, Any]) -> dict[str, Any]:
    """The end of the session, before that of Ray, and whether another session of its name could begin."""
    magnetar.spark.stop()
    return {"is_name_free": not is_name_taken(NAME + MASTER_SUFFIX)}


def chosen(question: dict[str, Any]) -> driver.Answer:
    """What answers a question."""
    if "stop" in question:
        return stop
    return read_topic if "read_topic" in question else driver.chosen(question)


def main(directory: str) -> None:
    """Answer until the input ends, with a cluster in this directory. Then everything ends."""
    answers = driver.take_answers()
    os.environ.pop("RAY_ADDRESS", None)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with magnetar.start(data_dir=directory, port=0, admin_port=0, brokers=1, bookies=2, ensemble="2/2/2") as cluster:
        begin = time.monotonic()
        spark = magnetar.spark.session(NAME, 1, 1, "1g", SPARK_CONFIGS)
        facts = {
            "service_url": cluster.service_url,
            "admin_url": cluster.admin_url,
            "versions": {"raydp": version("raydp"), "pyspark": spark.version},
            "session_s": time.monotonic() - begin,
        }
        print(json.dumps(facts), file=answers, flush=True)
        driver.answer_all(spark, answers, chosen)
        magnetar.spark.stop()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
