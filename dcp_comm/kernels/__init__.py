"""The merge's arithmetic on one device; one module for each way to run it."""
