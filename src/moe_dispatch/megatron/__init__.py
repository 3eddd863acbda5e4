"""megatron layer."""
