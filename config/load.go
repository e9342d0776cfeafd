package config

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

const (
	prefix = "TIDEMARK_"

	// fileFlag and its variable name the YAML file. They are not settings: a file cannot
	// name itself.
	fileFlag = "config"
)

// Origin is the kind of place that a value came from, lowest precedence first.
type Origin string

const (
	OriginDefault     Origin = "default"
	OriginDerived     Origin = "derived" // from the value of another setting
	OriginFile        Origin = "file"
	OriginEnvironment Origin = "environment"
	OriginFlag        Origin = "flag"
)

// Source says where a value came from.
type Source struct {
	Origin Origin `json:"origin"`
	// Name is the flag, the variable, "FILE: key", or the setting it is derived from.
	Name string `json:"name,omitempty"`
}

func (s Source) String() string {
	switch s.Origin {
	case OriginDefault:
		return "default"
	case OriginDerived:
		return "from " + s.Name
	default:
		return s.Name
	}
}

// Entry is one setting with its value.
type Entry struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Source  Source `json:"source"`
	Default string `json:"default"`
	Unit    string `json:"unit"`
}

// Shown is the value as people read it; Value is what the setting would be set to.
func (c *Config) Shown(key string) string {
	for _, s := range Settings() {
		if s.Key == key {
			return s.show(c)
		}
	}
	return ""
}

// Entries returns every setting with its value and where that came from.
func (c *Config) Entries() []Entry {
	var entries []Entry
	for _, s := range Settings() {
		entries = append(entries, Entry{s.Key, s.format(c), c.Source(s.Key), s.Default, s.Unit()})
	}
	return entries
}

// Default is the configuration of a node that is told nothing.
func Default() *Config {
	// The defaults are correct; a test holds that.
	c, _ := Load(pflag.NewFlagSet("", pflag.ContinueOnError), nil)
	return c
}

// Source says where the value of a setting came from.
func (c *Config) Source(key string) Source {
	if s, ok := c.sources[key]; ok {
		return s
	}
	return Source{Origin: OriginDefault}
}

// variable is the name of a key's environment variable.
func variable(key string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// rawFlag is a flag that keeps its text: Load reads all values in one place, and reports
// all that is wrong with them together.
type rawFlag struct{ text, unit string }

func (f *rawFlag) String() string     { return f.text }
func (f *rawFlag) Set(s string) error { f.text = s; return nil }
func (f *rawFlag) Type() string       { return f.unit }

// RegisterFlags adds a flag for every setting, and --config.
func RegisterFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.Var(&rawFlag{unit: string(kindPath)}, fileFlag,
		"YAML file with settings; its keys are the names of these flags ["+variable(fileFlag)+"]")
	for _, s := range Settings() {
		flags.Var(&rawFlag{s.Default, s.Unit()}, s.Key, s.usage())
	}
}

// Load resolves the configuration from flags that RegisterFlags has added to, the
// environment (as os.Environ returns it) and the YAML file that one of them names. The
// error, if anything is wrong, is a Problems.
func Load(flags *pflag.FlagSet, environ []string) (*Config, error) {
	c := &Config{sources: map[string]Source{}}
	known := map[string]bool{}
	defaults := map[string]any{}
	for _, s := range Settings() {
		known[s.Key] = true
		defaults[s.Key] = s.Default
	}
	merged := koanf.New(".")
	c.merge(merged, confmap.Provider(defaults, "."), nil, known, func(string) Source {
		return Source{Origin: OriginDefault}
	})

	if path := filePath(flags, environ); path != "" {
		c.merge(merged, file.Provider(path), yaml.Parser(), known, func(key string) Source {
			if key == "" {
				return Source{OriginFile, path} // the file as a whole
			}
			return Source{OriginFile, path + ": " + key}
		})
	}

	fromEnvironment := env.Provider("", env.Opt{
		Prefix:      prefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			if notASetting(name) {
				return "", nil
			}
			return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, prefix), "_", "-")), value
		},
	})
	c.merge(merged, fromEnvironment, nil, known, func(key string) Source {
		return Source{OriginEnvironment, variable(key)}
	})

	fromFlags := posflag.ProviderWithFlag(flags, ".", nil, func(f *pflag.Flag) (string, any) {
		if !known[f.Name] {
			return "", nil // a flag of the command itself
		}
		return f.Name, f.Value.String()
	})
	c.merge(merged, fromFlags, nil, known, func(key string) Source {
		return Source{OriginFlag, "--" + key}
	})

	for _, s := range Settings() {
		value := merged.Get(s.Key)
		if _, list := value.([]any); list && s.kind != kindPeers {
			c.report(s.Key, s.expectation()+", as one value", "a list")
			s.parse(c, s.Default)
			continue
		}
		text, ok := asText(value)
		if !ok || !s.parse(c, text) {
			c.report(s.Key, s.expectation(), text)
			s.parse(c, s.Default)
		}
	}
	c.derive()
	return c, c.Validate()
}

// merge loads one layer and notes the source of each of its keys.
func (c *Config) merge(into *koanf.Koanf, p koanf.Provider, parser koanf.Parser, known map[string]bool, source func(key string) Source) {
	layer := koanf.New(".")
	if err := layer.Load(p, parser); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			c.problems = append(c.problems, Problem{Key: fileFlag, Source: source(""), Expected: "a YAML file with settings", Found: "that the file does not exist"})
			return
		}
		if strings.Contains(err.Error(), "!!seq") {
			err = errors.New("a list; write \"key: value\" without a dash before it")
		}
		c.problems = append(c.problems, Problem{
			Key:      fileFlag,
			Source:   source(""),
			Expected: "a YAML file with settings, one \"key: value\" a line",
			Found:    err.Error(),
		})
		return
	}
	for _, key := range slices.Sorted(slices.Values(layer.Keys())) {
		if !known[key] && !known[parent(key)] {
			c.problems = append(c.problems, Problem{
				Key:      key,
				Source:   source(key),
				Expected: "the name of a setting" + suggestion(key),
				Found:    "a key that does not exist",
			})
			continue
		}
		c.sources[parent(key)] = source(parent(key))
	}
	// The delimiter and the keys are those of this package: a merge cannot fail.
	_ = into.Merge(layer)
}

// parent is the top-level part of a key of a nested file.
func parent(key string) string {
	top, _, _ := strings.Cut(key, ".")
	return top
}

// asText turns a value of the file into the text that a flag would have. A list is joined
// with commas.
func asText(value any) (string, bool) {
	switch v := value.(type) {
	case nil:
		return "", true
	case map[string]any:
		return "a map", false
	case []any:
		parts := make([]string, len(v))
		for i, part := range v {
			text, ok := asText(part)
			if !ok {
				return "a nested list", false
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), true
	default:
		return fmt.Sprint(v), true
	}
}

// filePath is what --config says, else what its variable says.
func filePath(flags *pflag.FlagSet, environ []string) string {
	if f := flags.Lookup(fileFlag); f != nil && f.Changed {
		return f.Value.String()
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); name == variable(fileFlag) {
			return value
		}
	}
	return ""
}

// serviceLink matches the variables that Kubernetes sets in every container for a service
// called tidemark or tidemark-something. They are no settings, and no mistakes.
const serviceLink = `^TIDEMARK_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`

// notASetting tells the variables of other uses from misspelt settings.
func notASetting(name string) bool {
	switch name {
	case prefix + "SERVER", variable(fileFlag): // for client commands; for Load itself
		return true
	}
	return regexp.MustCompile(serviceLink).MatchString(name)
}

// suggestion names the setting that was probably meant.
func suggestion(key string) string {
	key = strings.ToLower(strings.ReplaceAll(key, "_", "-"))
	best, distance := "", max(2, len(key)/3)
	for _, s := range Settings() {
		if d := editDistance(key, s.Key); d < distance {
			best, distance = s.Key, d
		}
	}
	if best == "" {
		return ""
	}
	return " (did you mean " + best + "?)"
}

// editDistance is the number of bytes to insert, delete or replace to get from a to b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
