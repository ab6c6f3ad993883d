"""Changes of the policy in force: from a directory or from signed commits, held, resumed, watched."""
