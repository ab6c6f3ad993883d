"""What runs on a device: the daemon, the worker, and what they say to each other."""
