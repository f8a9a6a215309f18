"""What is acknowledged and what is asked for again, entry by entry: states, delays, time-outs and receipts.

Left to others: when it is sent, and over which connection (`client.consuming`).
"""
