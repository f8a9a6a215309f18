"""The admin HTTP service: Pulsar's REST paths, statistics and metrics.

Left to others: deciding anything. It asks the coordinator and the brokers.
"""
