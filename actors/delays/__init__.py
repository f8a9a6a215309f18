"""Delayed delivery beyond memory: held messages in ledgers."""
