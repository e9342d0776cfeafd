// Package watch tests what watches a cluster: the alerts in deploy/prometheus, the dashboard in
// deploy/grafana, and what docs/operations.md says of each alert.
//
// It owns three kinds of checks. Of the files alone: each alert has its heading, each metric that
// is asked for exists with the labels that are asked for, the dashboard is well formed. By
// promtool: rules, configuration and the dashboard's expressions parse, and the unit tests of
// the rules pass. And by a real Prometheus that scrapes a real cluster, whose nodes are killed.
//
// The real Prometheus runs deploy/prometheus/prometheus.yml and alerts.yml, changed in three ways
// only (hurry): the targets are the test's, it scrapes each second and evaluates twice, and each
// "for" is divided by sixty. Expressions stay as they are, so that it can test those alerts
// that look at no more than the present. What has to hold for minutes the unit tests test.
//
// It may import anything. It needs prometheus and promtool on the PATH, which Debian's package
// prometheus has; only syntax that version 2.42 knows is used. Dependency: go.yaml.in/yaml, to
// read the rules; the settings' own YAML library stands on it, too.
package watch
