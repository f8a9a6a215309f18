"""What producers and consumers of a client share: configuration, connections, lookup, threads.

Left to others: messages out (`client.producing`), messages in (`client.consuming`), the public faces.
"""
