"""Which key tiles a query tile loads."""
