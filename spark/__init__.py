"""Topics as Spark DataFrames, through RayDP."""
