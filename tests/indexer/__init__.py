"""Tests of the sparse indexer."""
