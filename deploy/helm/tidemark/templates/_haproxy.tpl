{{/* deploy/haproxy/haproxy.cfg with these nodes; a test compares the two. */}}
{{- define "tidemark.haproxy" -}}
{{- $name := include "tidemark.fullname" . -}}
global
    log stdout format raw local0 info
    # Each takes two file descriptors, and about 35 KiB. HAProxy does not start if its limit of
    # descriptors ("ulimit -n") does not allow them.
    maxconn 4000

# Names are looked up again while HAProxy runs, because a node that moves takes its name
# along. Names that only /etc/hosts knows are not found this way: remove "resolvers dns" from
# the default-server line then, or write IP addresses.
resolvers dns
    parse-resolv-conf
    resolve_retries 3
    timeout resolve 1s
    timeout retry   1s
    hold valid      5s
    # A name server that is away does not take the cluster away.
    hold nx         10m
    hold refused    10m
    hold timeout    10m
    hold other      10m
    hold obsolete   10m

defaults
    mode tcp
    log global
    option tcplog
    # Connections of gRPC stay open and may be silent for long, as subscriptions are. A peer
    # that has vanished is found by TCP keepalives, not by a short timeout.
    option clitcpka
    option srvtcpka
    timeout connect 2s
    timeout client  1h
    timeout server  1h
    # While there is no leader a connection waits for one no longer than this.
    timeout queue   5s
    timeout check   1s
    # Another node may lead by the time that a connection is tried again.
    retries 3
    option redispatch

frontend clients
    bind :7440
    default_backend leader

backend leader
    # 200 on the one node that serves as leader, 503 with the leader's name elsewhere.
    option httpchk GET /leaderz
    http-check expect status 200
    # An answer that differs is asked for again after 100 ms, and believed when it comes twice,
    # so that one lost packet cuts no connections. Connections to a node that does not lead
    # any more are closed, or their clients would go on asking it.
    default-server port 7442 inter 500ms fastinter 100ms downinter 250ms rise 1 fall 2 on-marked-down shutdown-sessions init-addr last,libc,none resolvers dns resolve-prefer ipv4
{{- range $i := until (int .Values.replicas) }}
    server {{ $name }}-{{ $i }} "{{ $name }}-{{ $i }}.{{ printf (include "tidemark.domain" $) "${POD_NAMESPACE}" }}:7440" check
{{- end }}

# GET /metrics for Prometheus, and /livez for whoever runs HAProxy.
frontend metrics
    mode http
    bind :7443
    option dontlog-normal
    timeout client 10s
    http-request use-service prometheus-exporter if { path /metrics }
    monitor-uri /livez
    http-request return status 404
{{- end }}
