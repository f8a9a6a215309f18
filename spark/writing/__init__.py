"""Rows into topics: `frame` runs in the driver, `task_writer` and what it uses in Spark's Python workers."""
