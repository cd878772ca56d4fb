"""CUDA C++ kernels: their sources, the run-time compiler, and the launches."""
