"""Topics as Spark DataFrames through RayDP: readers on each node, and the blocks that they put."""
