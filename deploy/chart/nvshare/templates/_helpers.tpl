{{- define "nvshare.labels" -}}
app.kubernetes.io/name: nvshare
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "nvshare.image" -}}
{{- $root := index . 0 -}}
{{ $root.Values.image.prefix }}/{{ index . 1 }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- define "nvshare.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Where both DaemonSets run, and how urgently. */ -}}
{{- define "nvshare.placement" -}}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* NVML alone, of all GPUs (through the hook of NVIDIA's container toolkit), and what both have to agree on. */ -}}
{{- define "nvshare.surroundings" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
- name: NVSHARE_SOCK
  value: /var/run/nvshare/scheduler.sock
{{- with .Values.cardMemory }}
- name: NVSHARE_CARD_MEMORY
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* Root, because folders and sockets of the node belong to root; but root without a single capability. */ -}}
{{- define "nvshare.confined" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Namespace and pod of a series are those of the task, not of the exporter; the node is the target's. */ -}}
{{- define "nvshare.taskLabels" -}}
honorLabels: true
relabelings:
  - action: replace
    sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  - action: labeldrop
    regex: namespace|pod|container|service|endpoint
{{- end }}
