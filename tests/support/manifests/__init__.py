"""The manifests of `k8s`: rendered as kustomize and Helm do, checked against KubeRay's and Kubernetes' types, and run.

`kustomize` renders a directory, `helm` the chart, `types` checks objects, `layout` says which
Ray nodes and commands they make.
"""
