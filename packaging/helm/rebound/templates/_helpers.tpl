{{- define "rebound.name" -}}
{{- printf "%s-%s" .root.Release.Name .component | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "rebound.selector" -}}
app.kubernetes.io/name: rebound
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "rebound.labels" -}}
{{ include "rebound.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "rebound.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}

{{- /* A list of name, address and labels: the values', or the cluster's. */ -}}
{{- define "rebound.nodes" -}}
{{- $out := list -}}
{{- range .Values.nodes -}}
{{- $out = append $out . -}}
{{- end -}}
{{- if not $out -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $node := . -}}
{{- $address := "" -}}
{{- range .status.addresses -}}
{{- if and (eq .type "InternalIP") (not $address) -}}{{- $address = .address -}}{{- end -}}
{{- end -}}
{{- $zone := index (.metadata.labels | default dict) "topology.kubernetes.io/zone" | default "" -}}
{{- if $address -}}
{{- $out = append $out (dict "name" $node.metadata.name "address" $address "zone" $zone) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "nodes" $out | toJson -}}
{{- end -}}

{{- define "rebound.scheduling" -}}
{{- with .Values.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- /* Nothing that a program without capabilities could have. */ -}}
{{- define "rebound.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}
