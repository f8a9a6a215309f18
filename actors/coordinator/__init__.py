"""The one process that decides: members, topics, which broker owns what, and the metadata.

Left to others: repair of ledgers (`actors.auditor`), and restarting processes (`actors.processes`).
"""
