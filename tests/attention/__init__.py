"""Tests of attention over winners, and of what merges it."""
