"""bench layer: launches ranks, times dispatchers under one contract, and turns what happened into records."""
