{{- define "hived.name" -}}
{{ default .Release.Name .Values.fullnameOverride }}
{{- end -}}

{{- define "hived.labels" -}}
app.kubernetes.io/name: hived
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hived.specName" -}}
{{ default (printf "%s-spec" (include "hived.name" .)) .Values.existingSpec }}
{{- end -}}

{{- define "hived.host" -}}
{{ include "hived.name" . }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "hived.scheme" -}}
{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}
{{- end -}}

{{- define "hived.probeScheme" -}}
{{ if .Values.tls.secretName }}HTTPS{{ else }}HTTP{{ end }}
{{- end -}}

{{- define "hived.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "hived.subjects" -}}
- kind: ServiceAccount
  name: {{ include "hived.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
