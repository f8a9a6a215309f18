"""What one bookie keeps on one disk: a journal, the segments that it becomes, and an index of both.

It stores, fences, reads, deletes, compacts and scrubs entries of ledgers, and recovers all of it after a crash. Left to
others: which entries a ledger has, and on how many bookies (`storage.ledger`). The two meet only on the wire.
"""
