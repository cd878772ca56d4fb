"""torch.compile over the custom ops."""
