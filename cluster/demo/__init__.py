"""`make demo`: flights through a cluster, a broker killed on the way, and the check in Spark."""
