"""One bookie process: its service, the methods that other members call, and its maintenance.

Left to others: the disk (`storage.bookie`).
"""
