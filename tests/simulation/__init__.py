"""A deterministic simulator of a whole cluster: same services, same clients, one process, one seed. See `run`."""
