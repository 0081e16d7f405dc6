"""Attention kernels from a few lines of YAML."""
