"""What the worker reads from and writes to: virtual functions and the underlay."""
