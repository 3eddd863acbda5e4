"""Triton kernels of the experts; their plain torch counterparts stand in `moe/activation.py`."""
