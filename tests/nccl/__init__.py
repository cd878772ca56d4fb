"""The NCCL backends: against a stub, against a real libnccl without a GPU, and on GPUs."""
