"""One ledger on many bookies: its writer, its reader, its recovery, and the connections to bookies.

Left to others: which ledgers make up a topic (`storage.managed`), and how a bookie keeps entries (`storage.bookie`).
"""
