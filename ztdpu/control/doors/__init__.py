"""Control's doors: listeners, who may call what, who was refused, and the streams of connected agents."""
