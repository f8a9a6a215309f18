"""Rows into topics, for the tasks of Spark and Ray Data: `task_writer`, and what it uses."""
