"""Encryption end to end: keys, sealing and opening payloads, and what a message says of its encryption.

Left to others: when a message is sealed or opened, and what becomes of one that cannot be (`client.producing`,
`client.consuming`).
"""
