"""Generated from protos/ztdpu/v1 by `make generate`; never edited."""
