"""The manifests of `k8s`: rendered as kustomize does, checked against KubeRay's and Kubernetes' types, and run.

`kustomize` renders a directory, `types` checks objects, `layout` says which Ray nodes and commands they make.
"""
