"""Deduplication: each message of a producer name is stored once, however often its client sends it.

Left to others: publishing (`topics`), the storage of the cursor that keeps the sequence ids (`storage/managed`).
"""
