"""What should run: the desired state that the coordinator keeps, where members are placed, and how they are drained.

Left to others: starting and ending processes (`actors.processes`), moving topics and copying ledgers.
"""
