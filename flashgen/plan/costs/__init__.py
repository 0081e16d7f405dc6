"""What a step and a query tile cost, in clocks: the numbers of each card, and how the planner reads them."""
