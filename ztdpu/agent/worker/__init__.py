"""The worker: the process that moves packets. One synchronous epoll loop, no asyncio, no gRPC."""
