"""`magnetar admin`: the admin HTTP as commands with the nouns and verbs of `pulsar-admin`.

The tables of commands say everything: what a command is called, what it takes, which path it asks, and how the answer
is shown. A new path is one row. Commands of policies follow from the table of policies.
"""
