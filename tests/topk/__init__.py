"""Tests of keys, local top-K and the merge."""
