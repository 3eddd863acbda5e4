"""What every layer speaks: findings, choices, backend specifications and errors. Imports nothing above it."""
