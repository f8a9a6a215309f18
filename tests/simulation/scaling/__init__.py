"""What the control plane costs with very many topics and ledgers: no faults, and no virtual time.

Left to others: what brokers and slots cost (`simulation/scale.py`, which also is the entry point).
"""
