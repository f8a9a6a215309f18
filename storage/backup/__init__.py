"""Copies of the metadata: backups in files, restores into empty stores, and the move to another database.

Everything here blocks and runs in the operator's process, beside the cluster or without it. It reads a database in one
transaction, and fills an empty one in one transaction. Left to others: the stores themselves (`storage.metadata`), the
data directory and the commands (`cluster`).
"""
