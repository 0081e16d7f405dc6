"""The engines: how the products of a step are issued, who loads, who waits."""
