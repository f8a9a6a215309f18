"""What a connection to a broker stands on: addresses, requests and their answers, and what a silent broker means.

Nothing here opens a connection or knows of producers and consumers more than what it asks them; `client.core` does.
"""
