"""Which consumer gets which entry. Decisions only: no sockets and no storage.

Left to others: reading the entries and keeping the cursor (`actors.topics`).
"""
