"""What holds for a topic: the policies that there are, their values on each level, and a broker's copy of them.

Left to others: storing and changing policies (`actors.coordinator`), enforcing them (`actors.topics`), their paths
(`actors.admin`).
"""
