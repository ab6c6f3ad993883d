"""Policy as code: files in, a `Cluster` out; a `Cluster` in, compiled tables and explanations out.

load       files -> values with their places (strict YAML)
documents  values -> documents (pydantic), one model per kind
cluster    documents -> Cluster: names resolved, contradictions refused
select     labels and blocks -> endpoints and prefixes
compile    Cluster + device -> the canonical tables that the worker enforces
example    where the example cluster lies
explain    the same bytes + the same matcher -> why a packet would pass or not
"""
