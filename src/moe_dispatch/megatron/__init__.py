"""Megatron-LM and Megatron-Bridge: configuration that selects a dispatcher, and the training A/B that accepts it."""
