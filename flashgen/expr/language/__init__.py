"""The language: text to typed nodes, and back."""
