"""Everything about gRPC that both ends share: channels, error mapping, conversion of messages, the admin client."""
