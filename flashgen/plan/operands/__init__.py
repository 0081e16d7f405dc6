"""The operands: how a tile of q, k or v becomes an operand of products, where that is not as it lies in memory."""
