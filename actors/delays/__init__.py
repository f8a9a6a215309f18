"""Delayed delivery: the gate that holds messages back until their time, and the ledgers for those beyond memory.

Left to others: which consumer gets what is due (`actors.dispatch`).
"""
