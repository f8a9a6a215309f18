"""The public face for asyncio: client, producer, consumer, reader.

Every call runs on the application's own loop. Left to others: what the calls do.
"""
