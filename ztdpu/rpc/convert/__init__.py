"""Between protobuf messages and model objects, a file per noun. No other module reads fields of both."""
