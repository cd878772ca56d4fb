"""CUDA C++ kernels run on the CPU: the same sources, compiled by the host's C++ compiler."""
