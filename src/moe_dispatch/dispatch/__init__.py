"""Dispatchers: one file each behind `base.Dispatcher`; `reference` is the oracle that judges them. Needs torch."""
