{{- define "selectorLabels" -}}
app.kubernetes.io/name: gloo-appset-generator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "labels" -}}
{{ include "selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "labels" . | nindent 2 }}
{{- end }}

{{- define "tokensSecret" -}}
{{ .Values.tokens.secret | default .Release.Name }}
{{- end }}

{{- /* Whether the Pods need a service account token. */ -}}
{{- define "readsCluster" -}}
{{ or (not (empty .Values.kubernetes.namespaces)) .Values.kubernetes.watchNamespaces (not (empty .Values.refresh.namespaces)) }}
{{- end }}
