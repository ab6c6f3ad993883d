#!/bin/sh
# Make ztdpu/v1 and ztdpu/workloadapi from protos/; with --verify, fail if the committed code differs.
set -eu
cd "$(dirname "$0")/.."
target=.
if [ "${1:-}" = --verify ]; then
    target=$(mktemp -d)
    trap 'rm -rf "$target"' EXIT
fi
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m grpc_tools.protoc -I protos \
    --python_out="$target" --grpc_python_out="$target" --mypy_out=quiet:"$target" --mypy_grpc_out=quiet:"$target" \
    protos/ztdpu/v1/*.proto protos/ztdpu/workloadapi/*.proto
[ "$target" = . ] && exit 0
for made in "$target"/ztdpu/v1/* "$target"/ztdpu/workloadapi/*; do
    committed=${made#"$target"/}
    if ! cmp -s "$made" "$committed"; then
        echo "generated code differs: $committed" >&2
        echo "  next: make generate" >&2
        exit 1
    fi
done
