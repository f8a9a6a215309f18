"""Repair: ledgers that lack copies, damaged entries, ledgers that nothing names.

It runs beside the coordinator. Left to others: what a bookie keeps (`storage.bookie`).
"""
