"""Loops over tiles besides the online one, on the tiles and warps of an engine."""
