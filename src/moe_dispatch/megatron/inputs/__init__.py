"""Reading a job's configuration from what launches it."""
