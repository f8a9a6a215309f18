"""What should run: the desired state that the coordinator keeps, and where members are placed.

Left to others: drains (`coordinator.drains`), starting and ending processes (`actors.processes`), moving topics and
copying ledgers.
"""
