"""The key tiles that a query tile loads."""
