"""What control remembers about a device, the table of its states, and what each state allows."""
