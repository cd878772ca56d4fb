"""What the backends over NCCL share: its codes, its library, the life of its communicators."""
