"""Bounds on the clients of a topic that come from one IP address.

Left to others: how many clients a topic takes in all (`topics`), how many connections an address has (`connections`).
"""
