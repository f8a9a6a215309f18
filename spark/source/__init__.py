"""The Spark data source `magnetar` in Python, for PySpark 4 and later: batch reads in executors, outside of Ray too."""
