"""Messages out: batches, encoding, routing to partitions, receipts.

Left to others: connections (`client.core`) and the public faces (`client.aio`, `client.blocking`).
"""
