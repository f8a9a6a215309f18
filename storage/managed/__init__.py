"""A topic's chain of ledgers and the cursors on it: append, read, rollover, trim, delete.

Left to others: one ledger's copies (`storage.ledger`), and who publishes and consumes (`actors.topics`).
"""
