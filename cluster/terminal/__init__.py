"""Commands of the terminal that move messages, `magnetar produce` and `magnetar consume`, and what all commands share.

It finds the cluster, shows errors and paces messages. It leaves the commands of the cluster itself to `cluster`.
"""
