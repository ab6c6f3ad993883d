"""gRPC servicers, a file per noun: read the message, apply scope, call the core, make the answer. Nothing else."""
