"""RunRecords, their store and the provenance that goes into them. Torch-free."""
