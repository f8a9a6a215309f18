"""The settings of a cluster: names, defaults, units, limits, and their reading from text.

Left to others: what a setting does.
"""
