"""Real services for tests, one or many: on loopback sockets, in background threads, on Ray, PostgreSQL."""
