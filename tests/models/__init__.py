"""Tests against models that others wrote; skipped where transformers is not installed."""
