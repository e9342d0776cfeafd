package deploy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

var update = flag.Bool("update", false, "write deploy/kubernetes/tidemark.yaml anew")

// in names a file of the repository.
func in(path string) string { return filepath.Join("..", "..", filepath.FromSlash(path)) }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(in(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type object = map[string]any

// at walks into an object by keys, and into lists by index.
func at(t *testing.T, o any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := o.(object)
			if !ok || m[p] == nil {
				t.Fatalf("expected something at %v", path[:i+1])
			}
			o = m[p]
		case int:
			l, ok := o.([]any)
			if !ok || len(l) <= p {
				t.Fatalf("expected something at %v", path[:i+1])
			}
			o = l[p]
		}
	}
	return o
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(in("deploy/helm/tidemark"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render renders the chart as "helm template tidemark" does, with values over its defaults.
func render(t *testing.T, values string) (manifests, notes string, err error) {
	t.Helper()
	over, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	c := loadChart(t)
	all, err := chartutil.ToRenderValues(c, over, chartutil.ReleaseOptions{Name: "tidemark", Namespace: "tidemark", IsInstall: true}, nil)
	if err != nil {
		return "", "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", "", err
	}
	var out strings.Builder
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch text := strings.TrimSpace(files[name]); {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = text
		case text != "":
			fmt.Fprintf(&out, "---\n%s\n", text)
		}
	}
	return out.String(), notes, nil
}

// parse reads a stream of manifests, by kind and name.
func parse(t *testing.T, manifests string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var o object
		if err := d.Decode(&o); err != nil {
			if err.Error() != "EOF" {
				t.Fatalf("%v\n%s", err, manifests)
			}
			return all
		}
		if o == nil {
			continue
		}
		name := fmt.Sprintf("%v/%v", o["kind"], at(t, o, "metadata", "name"))
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = o
	}
}

// chartWith renders with values, and checks all of it against the schemas.
func chartWith(t *testing.T, values string) (all map[string]object, notes string) {
	t.Helper()
	text, notes, err := render(t, values)
	if err != nil {
		t.Fatalf("with %q: %v", values, err)
	}
	all = parse(t, text)
	for name, o := range all {
		conforms(t, name, o)
	}
	return all, notes
}

func names(all map[string]object) []string {
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestHelmLintHasNothingToSay(t *testing.T) {
	for _, m := range lint.All(in("deploy/helm/tidemark"), nil, "tidemark", true).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestKubernetesIsTheRenderedChart: what is committed is what the chart renders by default.
func TestKubernetesIsTheRenderedChart(t *testing.T) {
	text, _, err := render(t, "")
	if err != nil {
		t.Fatal(err)
	}
	const path = "deploy/kubernetes/tidemark.yaml"
	text = "# Rendered from deploy/helm/tidemark by \"make deploy-generate\". DO NOT EDIT.\n" + text
	if *update {
		if err := os.WriteFile(in(path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, path) != text {
		t.Errorf("%s is not what the chart renders: run make deploy-generate", path)
	}
	var k struct{ Resources []string }
	if err := yaml.Unmarshal([]byte(read(t, "deploy/kubernetes/kustomization.yaml")), &k); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(k.Resources, []string{"namespace.yaml", "tidemark.yaml"}) {
		t.Errorf("kustomization.yaml has %q", k.Resources)
	}
	for name, o := range parse(t, read(t, "deploy/kubernetes/namespace.yaml")) {
		conforms(t, name, o)
	}
}

func TestDefaults(t *testing.T) {
	all, _ := chartWith(t, "")
	want := []string{
		"ConfigMap/tidemark", "ConfigMap/tidemark-leader", "Deployment/tidemark-leader",
		"PodDisruptionBudget/tidemark", "PodDisruptionBudget/tidemark-leader",
		"Service/tidemark-leader", "Service/tidemark-nodes", "ServiceAccount/tidemark", "StatefulSet/tidemark",
	}
	if got := names(all); !slices.Equal(got, want) {
		t.Errorf("rendered %q\nexpected %q", got, want)
	}
	set := all["StatefulSet/tidemark"]
	for _, c := range []struct {
		want any
		path []any
	}{
		{"Parallel", []any{"spec", "podManagementPolicy"}}, // none is ready before all are there
		{"tidemark-nodes", []any{"spec", "serviceName"}},
		{true, []any{"spec", "template", "spec", "securityContext", "runAsNonRoot"}},
		{true, []any{"spec", "template", "spec", "containers", 0, "securityContext", "readOnlyRootFilesystem"}},
		{"/readyz", []any{"spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "path"}},
		{"/livez", []any{"spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "path"}},
		{120, []any{"spec", "template", "spec", "containers", 0, "startupProbe", "failureThreshold"}},
	} {
		if got := at(t, set, c.path...); got != c.want {
			t.Errorf("StatefulSet: %v is %v, expected %v", c.path, got, c.want)
		}
	}
	nodes := all["Service/tidemark-nodes"]
	if at(t, nodes, "spec", "clusterIP") != "None" || at(t, nodes, "spec", "publishNotReadyAddresses") != true {
		t.Error("the nodes' service must be headless and name nodes that are not ready, or no cluster is formed")
	}
	if at(t, all["PodDisruptionBudget/tidemark"], "spec", "maxUnavailable") != 1 {
		t.Error("more than one node may be taken away at once")
	}
}

// TestSelectors: every service, budget and monitor finds the pods that it is meant for and no
// others. The leader's service must never have a node as an endpoint.
func TestSelectors(t *testing.T) {
	all, _ := chartWith(t, "serviceMonitor: {enabled: true}")
	node := at(t, all["StatefulSet/tidemark"], "spec", "template", "metadata", "labels").(object)
	leader := at(t, all["Deployment/tidemark-leader"], "spec", "template", "metadata", "labels").(object)
	nodes, front := all["Service/tidemark-nodes"], all["Service/tidemark-leader"]
	for _, c := range []struct {
		name         string
		selector     any
		finds, skips []object
	}{
		{"the set", at(t, all["StatefulSet/tidemark"], "spec", "selector", "matchLabels"), []object{node}, []object{leader}},
		{"the deployment", at(t, all["Deployment/tidemark-leader"], "spec", "selector", "matchLabels"), []object{leader}, []object{node}},
		{"the nodes' service", at(t, nodes, "spec", "selector"), []object{node}, []object{leader}},
		{"the leader's service", at(t, front, "spec", "selector"), []object{leader}, []object{node}},
		{"the nodes' budget", at(t, all["PodDisruptionBudget/tidemark"], "spec", "selector", "matchLabels"), []object{node}, []object{leader}},
		{"the leader's budget", at(t, all["PodDisruptionBudget/tidemark-leader"], "spec", "selector", "matchLabels"), []object{leader}, []object{node}},
		{"the monitor", at(t, all["ServiceMonitor/tidemark"], "spec", "selector", "matchLabels"),
			[]object{at(t, nodes, "metadata", "labels").(object)}, []object{at(t, front, "metadata", "labels").(object)}},
	} {
		matches := func(labels object) bool {
			for k, v := range c.selector.(object) {
				if labels[k] != v {
					return false
				}
			}
			return true
		}
		for _, l := range c.finds {
			if !matches(l) {
				t.Errorf("%s does not find %v", c.name, l)
			}
		}
		for _, l := range c.skips {
			if matches(l) {
				t.Errorf("%s finds %v too", c.name, l)
			}
		}
	}
}

func TestPeersAreTheInitialNodes(t *testing.T) {
	for values, want := range map[string]int{
		"replicas: 1": 1, "": 3, "replicas: 5": 5, "{replicas: 5, initialNodes: 3}": 3, "{replicas: 3, initialNodes: 5}": 5,
	} {
		all, _ := chartWith(t, values)
		var peers []string
		for i := range want {
			peers = append(peers, fmt.Sprintf("tidemark-%d=tidemark-%d.tidemark-nodes.$(POD_NAMESPACE).svc.cluster.local:7441", i, i))
		}
		args := at(t, all["StatefulSet/tidemark"], "spec", "template", "spec", "containers", 0, "args").([]any)
		if !slices.Contains(args, any("--peers="+strings.Join(peers, ","))) {
			t.Errorf("with %q: expected %d peers, found %v", values, want, args)
		}
	}
}

var serverLine = regexp.MustCompile(`(?m)^    server .*\n`)

// TestLeaderServiceIsTheTestedHAProxy: the leader's service stands on deploy/haproxy, which
// test/deploy runs against a cluster; only the nodes differ.
func TestLeaderServiceIsTheTestedHAProxy(t *testing.T) {
	tested := read(t, "deploy/haproxy/haproxy.cfg")
	tested = tested[strings.Index(tested, "\nglobal\n")+1:]
	for _, replicas := range []int{1, 3, 5} {
		all, _ := chartWith(t, fmt.Sprint("replicas: ", replicas))
		config := at(t, all["ConfigMap/tidemark-leader"], "data", "haproxy.cfg").(string)
		if serverLine.ReplaceAllString(config, "") != serverLine.ReplaceAllString(tested, "") {
			t.Errorf("the chart's haproxy.cfg differs from deploy/haproxy/haproxy.cfg:\n%s", config)
		}
		var want []string
		for i := range replicas {
			want = append(want, fmt.Sprintf("    server tidemark-%d \"tidemark-%d.tidemark-nodes.${POD_NAMESPACE}.svc.cluster.local:7440\" check\n", i, i))
		}
		if got := serverLine.FindAllString(config, -1); !slices.Equal(got, want) {
			t.Errorf("with %d nodes: found %q\nexpected %q", replicas, got, want)
		}
	}
}

func TestWhatIsOffIsNotThere(t *testing.T) {
	all, notes := chartWith(t, "{leader: {enabled: false}, podDisruptionBudget: {enabled: false}, serviceAccount: {create: false}, antiAffinity: none, spreadOverZones: false}")
	if got, want := names(all), []string{"ConfigMap/tidemark", "Service/tidemark-nodes", "StatefulSet/tidemark"}; !slices.Equal(got, want) {
		t.Errorf("rendered %q, expected %q", got, want)
	}
	if spec := at(t, all["StatefulSet/tidemark"], "spec", "template", "spec").(object); spec["affinity"] != nil || spec["topologySpreadConstraints"] != nil {
		t.Error("the pods are still spread")
	}
	if strings.Contains(notes, "tidemark-leader") {
		t.Errorf("the notes name a service that is not there:\n%s", notes)
	}
}

// TestEveryValueRenders sets what the other tests leave at its default.
func TestEveryValueRenders(t *testing.T) {
	all, notes := chartWith(t, `
replicas: 4
initialNodes: 3
image: {repository: registry.example/tidemark, tag: "9.9", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
fullnameOverride: store
clusterDomain: example.internal
config: {log-format: console, memory-limit: 2GiB, head-cache-bytes: 128MiB, gogc: 200}
persistence: {size: 1Ti, storageClassName: fast, annotations: {a: b}}
antiAffinity: hard
nodeSelector: {disk: nvme}
tolerations: [{key: db, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [nvme]}]}]}}}
priorityClassName: high
podAnnotations: {a: b}
podLabels: {c: d}
serviceAccount: {name: other, annotations: {a: b}}
leader: {service: {type: LoadBalancer, annotations: {a: b}}}
serviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}`)
	set := all["StatefulSet/store"]
	c := at(t, set, "spec", "template", "spec", "containers", 0)
	if got := at(t, c, "image"); got != "registry.example/tidemark:9.9" {
		t.Errorf("the image is %v", got)
	}
	if got, want := at(t, all["ConfigMap/store"], "data", "tidemark.yaml"), "gogc: 200\nhead-cache-bytes: 128MiB\nlog-format: console\nmemory-limit: 2GiB\n"; strings.TrimSpace(got.(string)) != strings.TrimSpace(want) {
		t.Errorf("the settings are %q, expected %q", got, want)
	}
	affinity := at(t, set, "spec", "template", "spec", "affinity").(object)
	if affinity["nodeAffinity"] == nil || at(t, affinity, "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution") == nil {
		t.Errorf("affinity is %v", affinity)
	}
	for _, want := range []string{"WARNING: 4 nodes survive no more failures than 3 would", "Nodes from store-3 on are not members"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q:\n%s", want, notes)
		}
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 3":                           "replica",
		"replicas: 0":                          "replicas",
		"replicas: 11":                         "replicas",
		"antiAffinity: maybe":                  "antiAffinity",
		"leader: {enable: false}":              "enable",
		"terminationGracePeriodSeconds: 5":     "terminationGracePeriodSeconds",
		"config: {peers: \"a=b:1\"}":           "config.peers: this chart sets it itself",
		"config: {memory_limit: 1GiB}":         "memory_limit",
		"persistence: {size: plenty}":          "size",
		"serviceMonitor: {interval: sometime}": "interval",
	} {
		if _, _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: found error %v, expected one about %q", values, err, want)
		}
	}
}

// TestEveryValueIsInTheSchema: a value that the schema does not know could not be set.
func TestEveryValueIsInTheSchema(t *testing.T) {
	c := loadChart(t)
	if err := chartutil.ValidateAgainstSingleSchema(c.Values, c.Schema); err != nil {
		t.Error(err)
	}
	if bytes.Count(c.Schema, []byte(`"additionalProperties": false`)) < 8 {
		t.Error("the schema is not closed to values that are misspelled")
	}
}
