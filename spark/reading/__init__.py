"""Topics as lazy DataFrames of any Spark from 3.5 on, with RayDP or without."""
