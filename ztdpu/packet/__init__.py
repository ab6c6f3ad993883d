"""The path of a packet, as pure functions: parse, match, remember, segment. No socket, no clock."""
