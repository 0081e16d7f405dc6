"""The cost of a step and of a query tile, in clocks: the numbers of each card, and how the planner reads them."""
