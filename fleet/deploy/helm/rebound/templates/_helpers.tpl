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

{{- /* "true" if a sidecar of the prober follows the cluster's nodes. */ -}}
{{- define "rebound.discovers" -}}
{{- if and .Values.prober.enabled .Values.discovery.enabled (not .Values.nodes) -}}
{{- if semverCompare "<1.29-0" .Capabilities.KubeVersion.Version -}}{{ fail "discovery.enabled needs Kubernetes 1.29: set it to false, or list the nodes in the value nodes" }}{{- end -}}
true
{{- end -}}
{{- end -}}

{{- /* Whether the pods run on control plane nodes. */ -}}
{{- define "rebound.tolerated" -}}
{{- range .Values.tolerations -}}
{{- if and (eq (.operator | default "Equal") "Exists") (has (.key | default "") (list "" "node-role.kubernetes.io/control-plane")) (has (.effect | default "") (list "" "NoSchedule")) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The configuration of rebound-discover: the nodes that have a responder, unless other taints keep it away. */ -}}
{{- define "rebound.discovery" -}}
{{- $select := list -}}
{{- range $k, $v := .Values.nodeSelector -}}
{{- $select = append $select (printf "%s=%s" $k $v) -}}
{{- end -}}
{{- if not (include "rebound.tolerated" .) -}}
{{- $select = append $select "!node-role.kubernetes.io/control-plane" -}}
{{- end -}}
{{- $sd := dict "role" "node" -}}
{{- if $select -}}
{{- $sd = set $sd "selectors" (list (dict "role" "node" "label" (join "," $select))) -}}
{{- end -}}
{{- $relabel := list (dict "source_labels" (list "__meta_kubernetes_node_name") "target_label" "node") -}}
{{- $relabel = append $relabel (dict "source_labels" (list "__address__") "regex" "(.*):.*" "target_label" "__address__") -}}
{{- range $label, $of := .Values.nodeLabels -}}
{{- $relabel = append $relabel (dict "source_labels" (list (printf "__meta_kubernetes_node_label_%s" (regexReplaceAll "[^a-zA-Z0-9_]" $of "_"))) "target_label" $label) -}}
{{- end -}}
{{- $relabel = concat $relabel .Values.discovery.relabelConfigs -}}
{{- list (dict "job_name" "nodes" "kubernetes_sd_configs" (list $sd) "relabel_configs" $relabel) | toYaml -}}
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
{{- $has := .metadata.labels | default dict -}}
{{- $wanted := or (include "rebound.tolerated" $) (not (hasKey $has "node-role.kubernetes.io/control-plane")) -}}
{{- range $k, $v := $.Values.nodeSelector -}}
{{- if ne (index $has $k | default "") $v -}}{{- $wanted = false -}}{{- end -}}
{{- end -}}
{{- if and $address $wanted -}}
{{- $one := dict "name" $node.metadata.name "address" $address -}}
{{- range $label, $of := $.Values.nodeLabels -}}
{{- $_ := set $one $label (index $has $of | default "") -}}
{{- end -}}
{{- $out = append $out $one -}}
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
