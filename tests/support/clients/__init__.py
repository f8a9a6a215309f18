"""Those who talk to a broker in a test: the client library, raw frames, publishers that remember."""
