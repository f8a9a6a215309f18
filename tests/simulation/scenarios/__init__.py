"""What `run.py` can run from one seed: a world, its workloads, its faults and its checkers, put together."""
