"""Topic compaction: which messages of a topic are kept, the copy of them, and when a topic is compacted.

Left to others: where the compacted ledger is and what may be trimmed (`storage.managed`), who reads it (topics).
"""
