"""Tests of the CUDA kernels and of what compiles and launches them."""
