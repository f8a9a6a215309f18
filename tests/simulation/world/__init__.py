"""The simulated world: virtual time, a network, disks, processes, a metadata database, clusters made of them.

It leaves to others what goes wrong in it (`faults`), who uses it (`workloads`), and what must hold (`checkers`).
"""
