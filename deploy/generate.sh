#!/bin/sh
# Make ztdpu/v1 from protos/; with --verify, fail if the committed code differs.
set -eu
cd "$(dirname "$0")/.."
target=.
if [ "${1:-}" = --verify ]; then
    target=$(mktemp -d)
    trap 'rm -rf "$target"' EXIT
fi
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m grpc_tools.protoc -I protos \
    --python_out="$target" --grpc_python_out="$target" --mypy_out=quiet:"$target" --mypy_grpc_out=quiet:"$target" \
    protos/ztdpu/v1/*.proto
[ "$target" = . ] && exit 0
for made in "$target"/ztdpu/v1/*; do
    if ! cmp -s "$made" "ztdpu/v1/$(basename "$made")"; then
        echo "generated code differs: ztdpu/v1/$(basename "$made")" >&2
        echo "  next: make generate" >&2
        exit 1
    fi
done
