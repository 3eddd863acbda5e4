"""decide layer."""
