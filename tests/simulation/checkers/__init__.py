"""What must hold: histories of what clients learned, and watches that look at bookies, brokers and metadata.

Checkers stand outside the simulated processes and change nothing in them.
"""
