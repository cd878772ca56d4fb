"""One suite of rules over every backend: a backend joins by one class."""
