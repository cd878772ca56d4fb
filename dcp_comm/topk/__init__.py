"""Exact global top-K: the order of candidates, a rank's own top-K, and the merge across ranks."""
