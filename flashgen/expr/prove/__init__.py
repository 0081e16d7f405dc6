"""Proofs about expressions: bounds of integers, signs, roundings."""
