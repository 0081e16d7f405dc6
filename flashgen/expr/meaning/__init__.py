"""What expressions mean: with NumPy, and in the float64 reference."""
