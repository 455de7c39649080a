{{- define "gateway.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* "yes" where several gateways can share what they know: a database, not a file. */ -}}
{{- define "gateway.shared" -}}
{{- if or .Values.database.existingSecret (dig "storage" "url" "" .Values.config) }}yes{{ end -}}
{{- end -}}

{{- /* "yes" where more than one pod may run. */ -}}
{{- define "gateway.several" -}}
{{- if or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) }}yes{{ end -}}
{{- end -}}

{{- /* Refuses what would lose data or show a key. */ -}}
{{- define "gateway.check" -}}
{{- if and (include "gateway.several" .) (not (include "gateway.shared" .)) -}}
{{- fail "several replicas need PostgreSQL: a SQLite file has one gateway. Set database.existingSecret, or replicaCount: 1 and autoscaling.enabled: false" -}}
{{- end -}}
{{- $auth := dig "auth" dict .Values.config -}}
{{- $known := list (list "config.auth.admin_key" (dig "admin_key" "" $auth)) -}}
{{- $known = append $known (list "config.storage.url" (dig "storage" "url" "" .Values.config)) -}}
{{- $known = append $known (list "config.default_upstream.api_key" (dig "default_upstream" "api_key" "" .Values.config)) -}}
{{- range $name, $key := dig "gateway_keys" dict $auth -}}
{{- $known = append $known (list (printf "config.auth.gateway_keys.%s" $name) $key) -}}
{{- end -}}
{{- range $at, $each := dig "model_list" list .Values.config -}}
{{- $known = append $known (list (printf "config.model_list[%d].litellm_params.api_key" $at) (dig "litellm_params" "api_key" "" $each)) -}}
{{- end -}}
{{- range $known -}}
{{- $value := last . | toString -}}
{{- if and $value (not (hasPrefix "${" $value)) (not (hasPrefix "os.environ/" $value)) -}}
{{- fail (printf "%s: a key does not belong into values: put it into the Secret of existingSecret, and write \"${NAME_OF_THE_VARIABLE}\" here" (first .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gateway.env" -}}
- { name: GATEWAY_SERVER__WORKERS, value: {{ .Values.workers | quote }} }
- { name: GATEWAY_SERVER__DRAIN_S, value: {{ .Values.drainSeconds | quote }} }
{{- if include "gateway.shared" . }}
- { name: GATEWAY_STORAGE__SYNCHRONOUS, value: full }
- { name: GATEWAY_STORAGE__SPOOL_PATH, value: /data/spool }
{{- if .Values.database.existingSecret }}
- name: GATEWAY_STORAGE__URL
  valueFrom: { secretKeyRef: { name: {{ .Values.database.existingSecret }}, key: {{ .Values.database.key }} } }
{{- end }}
{{- else }}
- { name: GATEWAY_STORAGE__PATH, value: /data/gateway.db }
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What both containers of the pod have. */ -}}
{{- define "gateway.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
env:
  {{- include "gateway.env" . | nindent 2 }}
{{- with .Values.existingSecret }}
envFrom:
  - secretRef: { name: {{ . }} }
{{- end }}
volumeMounts:
  - { name: config, mountPath: /etc/steering-gateway, readOnly: true }
  - { name: data, mountPath: /data }
  - { name: tmp, mountPath: /tmp }
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- end -}}
