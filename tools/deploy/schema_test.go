package deploy

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemas has one definition a kind; where it comes from is in its $comment.
//
//go:embed schemas/kubernetes.json
var schemas []byte

var versions = map[string]string{
	"ConfigMap": "v1", "Namespace": "v1", "Service": "v1", "ServiceAccount": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
	"PodDisruptionBudget": "policy/v1", "ServiceMonitor": "monitoring.coreos.com/v1",
}

var compiler = sync.OnceValues(func() (*jsonschema.Compiler, error) {
	all, err := jsonschema.UnmarshalJSON(bytes.NewReader(schemas))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	return c, c.AddResource("kubernetes.json", all)
})

// check says how an object differs from what Kubernetes takes: unknown fields are wrong, too.
func check(o object) error {
	kind := fmt.Sprint(o["kind"])
	if version := versions[kind]; version == "" || o["apiVersion"] != version {
		return fmt.Errorf("apiVersion %v, kind %v: expected one of %v", o["apiVersion"], kind, versions)
	}
	c, err := compiler()
	if err != nil {
		return err
	}
	s, err := c.Compile("kubernetes.json#/$defs/" + kind)
	if err != nil {
		return err
	}
	// As JSON has it, for the numbers.
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(plain)
}

func conforms(t *testing.T, name string, o object) {
	t.Helper()
	if err := check(o); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// TestSchemasFindMistakes: a check that passes everything would pass the chart, too.
func TestSchemasFindMistakes(t *testing.T) {
	text, _, err := render(t, "serviceMonitor: {enabled: true}")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ object, old, new string }{
		{"StatefulSet/tidemark", "podManagementPolicy:", "podManagementPolicies:"},
		{"StatefulSet/tidemark", "readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"},
		{"StatefulSet/tidemark", "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 30s"},
		{"StatefulSet/tidemark", "- name: tidemark\n          image:", "- image:"},
		{"Service/tidemark-nodes", "port: 7440", "port: many"},
		{"PodDisruptionBudget/tidemark", "maxUnavailable: 1", "maxUnavailable: [1]"},
		{"ServiceMonitor/tidemark", "interval: 15s", "interval: often"},
		{"ServiceMonitor/tidemark", "endpoints:", "endpoint:"},
		{"ConfigMap/tidemark", "apiVersion: v1\nkind: ConfigMap", "apiVersion: v2\nkind: ConfigMap"},
	} {
		var docs []string
		for d := range strings.SplitSeq(text, "---\n") {
			docs = append(docs, strings.ReplaceAll(d, c.old, c.new))
		}
		changed := parse(t, strings.Join(docs, "---\n"))[c.object]
		if changed == nil {
			t.Errorf("%s: with %q there is none", c.object, c.new)
		} else if check(changed) == nil {
			t.Errorf("%s: %q in place of %q passes", c.object, c.new, c.old)
		}
	}
}
