"""What a topic keeps and gives up beside acknowledgements: messages that are too old, and backlogs that are too large.

Left to others: retention of what is acknowledged (`storage.managed.trimming`), the policies (`actors.policies`).
"""
