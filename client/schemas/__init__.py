"""Schemas in the client: what brokers are asked about them.

Left to others: connections and lookups (`client.core`).
"""
