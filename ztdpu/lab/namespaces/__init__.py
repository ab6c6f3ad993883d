"""Namespaces of the kernel that a lab is made of: places, inhabitants, links between them."""
