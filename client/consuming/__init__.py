"""Messages in: the receive queue, acknowledgements, redelivery, seeks.

Left to others: connections (`client.core`) and the public faces (`client.aio`, `client.blocking`).
"""
