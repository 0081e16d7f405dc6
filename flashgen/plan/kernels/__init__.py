"""The kernels before and after the attention."""
