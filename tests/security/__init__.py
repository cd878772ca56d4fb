"""What the library promises about peers, stores, files and words that are not to be trusted."""
