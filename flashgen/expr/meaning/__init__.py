"""The meaning of expressions: with NumPy, and in the float64 reference."""
