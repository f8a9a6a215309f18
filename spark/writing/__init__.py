"""Writing a DataFrame into a topic: `frame` runs in the driver, `partition_writer` in Spark's Python workers."""
