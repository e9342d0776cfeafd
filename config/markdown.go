package config

import (
	"fmt"
	"strings"
)

// Markdown is docs/configuration.md: the table of settings for readers.
func Markdown() string {
	var doc strings.Builder
	doc.WriteString(`# Configuration of a node

Generated from the table in ` + "`config/settings.go`" + `; do not edit. A test compares them; to
write this file anew: ` + "`UPDATE=1 go test ./config -run TestDocumentation`" + `.

A node needs no configuration. Every setting is a flag of ` + "`tidemark serve`" + `, an environment
variable, and a key of the YAML file that ` + "`--config FILE`" + ` or ` + "`" + variable(fileFlag) + "`" + ` names; the
flag wins over the environment, the environment over the file, the file over the default.
` + "`tidemark config print`" + ` takes the same flags and shows every value and where it came from.
Unknown keys of the file and unknown ` + "`" + prefix + "...`" + ` variables are errors (variables that Kubernetes
sets for a service called tidemark are not).

Sizes are bytes: ` + "`4096`, `64KiB`, `256MiB`, `1.5GiB`, `10MB`" + `. Durations have a unit: ` + "`10s`, `500ms`, `1m30s`" + `.

| key and flag | environment | unit | default | takes | what it is |
|---|---|---|---|---|---|
`)
	for _, s := range Settings() {
		value := "(empty)"
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&doc, "| `%s` | `%s` | %s | %s | %s | %s |\n",
			s.Key, s.Variable(), s.Unit(), value, s.bounds(), s.Help)
	}
	return doc.String()
}
