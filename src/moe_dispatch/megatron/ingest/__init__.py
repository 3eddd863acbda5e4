"""Reads what a Megatron training run left behind (logs, configuration dumps, profiles) into RunRecords. No torch."""
