{{/* The name of everything: the release's, and the chart's if that does not say it. */}}
{{- define "tidemark.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* What a selector matches; it can never change for a release. */}}
{{- define "tidemark.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidemark.labels" -}}
{{ include "tidemark.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidemark
{{- end }}

{{- define "tidemark.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidemark.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* The part of a pod's DNS name after its own. Kubernetes and HAProxy fill in the namespace. */}}
{{- define "tidemark.domain" -}}
{{ include "tidemark.fullname" . }}-nodes.%s.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* --peers: the raft addresses of the nodes that form the cluster. */}}
{{- define "tidemark.peers" -}}
{{- $name := include "tidemark.fullname" . -}}
{{- $domain := printf (include "tidemark.domain" .) "$(POD_NAMESPACE)" -}}
{{- $peers := list -}}
{{- range $i := until (int (.Values.initialNodes | default .Values.replicas)) -}}
{{- $peers = append $peers (printf "%s-%d=%s-%d.%s:7441" $name $i $name $i $domain) -}}
{{- end -}}
{{- join "," $peers -}}
{{- end }}
