"""What is provable of expressions: where integers lie, signs, roundings."""
