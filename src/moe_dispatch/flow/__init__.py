"""flow layer."""
