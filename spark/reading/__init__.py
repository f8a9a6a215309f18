"""Topics as Spark DataFrames: the plan of a read, its tasks, and the decoding of entries into Arrow.

Left to others: starting Spark (`spark.session`).
"""
