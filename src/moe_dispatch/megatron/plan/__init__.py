"""The matched training A/B as a folder: arms, order, scripts for one allocation, cost, and what its logs will prove."""
