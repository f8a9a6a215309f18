"""Bulk reads: the plan of a read, reading ranges of ledgers from the bookies, and decoding entries into Arrow.

Left to others: where the rows go. `magnetar.spark` brings them into Spark.
"""
