"""Which fabric a lab can be built on here, and who forbids the others."""
