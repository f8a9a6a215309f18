"""Several Ray nodes on one machine: hosts with addresses of their own, whose links a test cuts, and which it kills.

`namespaces` makes a host out of Linux namespaces, `network` joins hosts, `ray_hosts` runs Ray and Magnetar on them.
"""
