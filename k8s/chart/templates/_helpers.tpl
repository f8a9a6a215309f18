{{/*
The objects of a file of Kustomize's manifests, as a YAML list, in the namespace of the release.
The chart has the directories k8s/base and k8s/jobs by symbolic links. Arguments: root, name.
*/}}
{{- define "magnetar.objects" -}}
{{- $text := .root.Files.Get .name -}}
{{- if not $text }}{{ fail (printf "the chart has no %s: get the whole repository with its symbolic links, or make the chart again with `helm package`" .name) }}{{ end -}}
{{- $objects := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- $_ := set $object.metadata "namespace" $.root.Release.Namespace -}}
{{- $objects = append $objects $object -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end }}

{{/* The ports of a list without those of brokers, and one for each broker, as a YAML list. Arguments: root, ports, key, and target. */}}
{{- define "magnetar.ports" -}}
{{- $ports := list -}}
{{- range .ports }}{{ if not (hasPrefix "broker-" .name) }}{{ $ports = append $ports . }}{{ end }}{{ end -}}
{{- range $index := until (int .root.Values.brokers.count) -}}
{{- $name := printf "broker-%d" (add1 $index) -}}
{{- $port := dict "name" $name $.key (add 6700 $index) -}}
{{- if $.target }}{{ $_ := set $port "targetPort" $name }}{{ end -}}
{{- $ports = append $ports $port -}}
{{- end -}}
{{- toYaml $ports -}}
{{- end }}

{{/* Give a container the image of the values. Arguments: root, container. */}}
{{- define "magnetar.image" -}}
{{- $image := .root.Values.image -}}
{{- $_ := set .container "image" (printf "%s:%s" $image.repository $image.tag) -}}
{{- if $image.pullPolicy }}{{ $_ := set .container "imagePullPolicy" $image.pullPolicy }}{{ end -}}
{{- end }}

{{/* Where the pods of a group run, and what is written on them. Arguments: root, template, values. */}}
{{- define "magnetar.place" -}}
{{- $spec := .template.spec -}}
{{- with .values.nodeSelector }}{{ $_ := set $spec "nodeSelector" . }}{{ end -}}
{{- with .values.tolerations }}{{ $_ := set $spec "tolerations" . }}{{ end -}}
{{- with .values.priorityClassName }}{{ $_ := set $spec "priorityClassName" . }}{{ end -}}
{{- with .values.annotations }}{{ $_ := set $.template.metadata "annotations" . }}{{ end -}}
{{- include "magnetar.pull" (dict "root" .root "spec" $spec) -}}
{{- end }}

{{/* Give a pod the Secrets of its registry. Arguments: root, spec. */}}
{{- define "magnetar.pull" -}}
{{- $secrets := list -}}
{{- range .root.Values.image.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- if $secrets }}{{ $_ := set .spec "imagePullSecrets" $secrets }}{{ end -}}
{{- end }}
