package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load resolves a configuration from a command line, an environment and a file's text.
// The file's path is replaced by FILE in errors.
func load(t *testing.T, args, environ []string, file string) (*Config, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tidemark.yaml")
	if file != "" {
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		environ = append(environ, "TIDEMARK_CONFIG="+path)
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	RegisterFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	c, err := Load(flags, environ)
	if err == nil {
		return c, ""
	}
	if !errors.As(err, new(Problems)) {
		t.Fatalf("Load: %T, want Problems", err)
	}
	return c, strings.ReplaceAll(err.Error(), path, "FILE")
}

func entry(t *testing.T, c *Config, key string) Entry {
	t.Helper()
	for _, e := range c.Entries() {
		if e.Key == key {
			return e
		}
	}
	t.Fatalf("no setting %q", key)
	return Entry{}
}

func TestDefaults(t *testing.T) {
	want := &Config{
		DataDir: "tidemark-data", NodeID: "n1",
		Listen: "127.0.0.1:7440", RaftListen: "127.0.0.1:7441", HTTPListen: "127.0.0.1:7442",
		Advertise: "127.0.0.1:7440", RaftAdvertise: "127.0.0.1:7441",
		LogLevel: "info", LogFormat: "console",
		MaxRequestBytes: 4 << 20, MaxConcurrentCalls: 8192, MaxConcurrentReads: 4096, MaxSubscribers: 16384,
		MaxInFlightBytes: 64 << 20, MaxReadBytes: 128 << 20,
		HeadCacheBytes: 64 << 20, MarkCacheBytes: 32 << 20, BlockCacheBytes: 256 << 20, SubscriptionRingBytes: 16 << 20, MemtableBytes: 64 << 20,
		MemoryLimitBytes: 900 << 20, GCPercent: 400,
		MinFreeDiskBytes: 256 << 20, SnapshotLogBytes: 256 << 20, TrailingLogBytes: 64 << 20,
		ShutdownTimeout: 10 * time.Second, DiskStallTimeout: 30 * time.Second,
	}
	got := Default()
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	if w := got.Warnings(); w != nil {
		t.Errorf("warnings about the defaults: %q", w)
	}
	got.sources = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestFlagOverEnvironmentOverFileOverDefault(t *testing.T) {
	flag := []string{"--max-request-bytes", "1MiB"}
	environ := []string{"PATH=/bin", "TIDEMARK_MAX_REQUEST_BYTES=2MiB"}
	file := "max-request-bytes: 3MiB\n"
	for _, c := range []struct {
		name          string
		args, environ []string
		file          string
		value         string
		source        string
	}{
		{"nothing set", nil, nil, "", "4MiB", "default"},
		{"file", nil, nil, file, "3MiB", "FILE: max-request-bytes"},
		{"environment and file", nil, environ, file, "2MiB", "TIDEMARK_MAX_REQUEST_BYTES"},
		{"all", flag, environ, file, "1MiB", "--max-request-bytes"},
		{"flag alone", flag, nil, "", "1MiB", "--max-request-bytes"},
		{"the default said aloud", []string{"--max-request-bytes=4MiB"}, environ, file, "4MiB", "--max-request-bytes"},
	} {
		config, problems := load(t, c.args, c.environ, c.file)
		if problems != "" {
			t.Fatalf("%s: %s", c.name, problems)
		}
		got := entry(t, config, "max-request-bytes")
		source := got.Source.String()
		if i := strings.LastIndex(source, "tidemark.yaml"); i >= 0 {
			source = "FILE" + source[i+len("tidemark.yaml"):]
		}
		if got.Value != c.value || source != c.source {
			t.Errorf("%s: %s from %s, want %s from %s", c.name, got.Value, source, c.value, c.source)
		}
	}
}

func TestTheConfigFlagWinsOverItsVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(path, []byte("node-id: flagged"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, problems := load(t, []string{"--config", path}, nil, "node-id: named-by-variable")
	if problems != "" || c.NodeID != "flagged" {
		t.Errorf("node-id %q, problems %q; want flagged, none", c.NodeID, problems)
	}
}

// Every setting must be reachable in all three ways and land in its own field.
func TestEverySettingIsReadFromEveryLayer(t *testing.T) {
	values := map[string]string{
		"data-dir": "/var/lib/tidemark", "node-id": "n7", "listen": "127.0.0.2:1", "raft-listen": "127.0.0.2:2",
		"http-listen": "127.0.0.2:3", "advertise": "db.example:4", "raft-advertise": "db.example:5",
		"peers": "n7=db.example:5", "log-level": "debug", "log-format": "json",
		"max-request-bytes": "8MiB", "max-concurrent-calls": "17", "max-in-flight-bytes": "128MiB",
		"max-concurrent-reads": "13", "max-subscribers": "14", "subscription-ring-bytes": "1MiB", "max-read-bytes": "96MiB",
		"memory-limit": "8GiB", "gogc": "150", "head-cache-bytes": "0", "mark-cache-bytes": "5MiB",
		"block-cache-bytes": "1GiB", "memtable-bytes": "32MiB", "min-free-disk-bytes": "0",
		"snapshot-log-bytes": "1GiB", "trailing-log-bytes": "128MiB", "shutdown-timeout": "3s",
		"election-timeout": "2s", "heartbeat-timeout": "1s", "disk-stall-timeout": "1m",
	}
	var args, environ []string
	var file strings.Builder
	for _, s := range Settings() {
		value, ok := values[s.Key]
		if !ok {
			t.Fatalf("this test has no value for %s", s.Key)
		}
		args = append(args, "--"+s.Key, value)
		environ = append(environ, s.Variable()+"="+value)
		file.WriteString(s.Key + ": " + value + "\n")
	}
	for name, c := range map[string]func() (*Config, string){
		"flags":       func() (*Config, string) { return load(t, args, nil, "") },
		"environment": func() (*Config, string) { return load(t, nil, environ, "") },
		"file":        func() (*Config, string) { return load(t, nil, nil, file.String()) },
	} {
		got, problems := c()
		if problems != "" {
			t.Errorf("%s: %s", name, problems)
			continue
		}
		for _, e := range got.Entries() {
			if e.Value != values[e.Key] {
				t.Errorf("%s: %s is %q, want %q", name, e.Key, e.Value, values[e.Key])
			}
		}
	}
}

func TestAPeerListMayBeAYAMLList(t *testing.T) {
	c, problems := load(t, nil, nil, "peers:\n  - n1=127.0.0.1:7441\n")
	if problems != "" || !reflect.DeepEqual(c.Peers, []Peer{{"n1", "127.0.0.1:7441"}}) {
		t.Errorf("peers %v, problems %q", c.Peers, problems)
	}
}

func TestProblemsNameTheKeyTheSourceAndBothSides(t *testing.T) {
	for _, c := range []struct {
		name          string
		args, environ []string
		file          string
		want          []string // the lines after the first
	}{
		{name: "a size", args: []string{"--max-request-bytes", "17MiB"},
			want: []string{`max-request-bytes (--max-request-bytes): expected a size from 64KiB to 16MiB, in bytes or with a unit such as KiB, MiB or MB; found "17MiB"`}},
		{name: "a size that is no size", environ: []string{"TIDEMARK_MEMTABLE_BYTES=lots"},
			want: []string{`memtable-bytes (TIDEMARK_MEMTABLE_BYTES): expected a size from 1MiB to 1GiB, in bytes or with a unit such as KiB, MiB or MB; found "lots"`}},
		{name: "a duration without unit", file: "shutdown-timeout: 10",
			want: []string{`shutdown-timeout (FILE: shutdown-timeout): expected a duration from 1s to 10m, with a unit; found "10"`}},
		{name: "a count", args: []string{"--max-concurrent-calls=many"},
			want: []string{`max-concurrent-calls (--max-concurrent-calls): expected a whole number from 1 to 1048576; found "many"`}},
		{name: "a percentage", args: []string{"--gogc=5"},
			want: []string{`gogc (--gogc): expected a percentage from 10 to 10000, without a sign; found "5"`}},
		{name: "a word", args: []string{"--log-format=xml"},
			want: []string{`log-format (--log-format): expected json or console; found "xml"`}},
		{name: "an address", args: []string{"--listen=7440"},
			want: []string{`listen (--listen): expected an address such as 127.0.0.1:7440; found "7440"`}},
		{name: "a port", args: []string{"--listen=127.0.0.1:74400"},
			want: []string{`listen (--listen): expected an address such as 127.0.0.1:7440; found "127.0.0.1:74400"`}},
		{name: "nothing", environ: []string{"TIDEMARK_DATA_DIR="},
			want: []string{`data-dir (TIDEMARK_DATA_DIR): expected a path; found nothing`}},
		{name: "a name", args: []string{"--node-id=n 1"},
			want: []string{`node-id (--node-id): expected a name of 1 to 64 characters from a-z A-Z 0-9 . _ -; found "n 1"`}},
		{name: "peers", args: []string{"--peers=n1"},
			want: []string{`peers (--peers): expected peers such as n1=10.0.0.1:7441,n2=10.0.0.2:7441, or nothing; found "n1"`}},
		{name: "a map", file: "listen:\n  host: localhost\n",
			want: []string{`listen (FILE: listen): expected an address such as 127.0.0.1:7440; found "a map"`}},

		{name: "a list", file: "listen:\n  - 127.0.0.1:1\n  - 127.0.0.1:2\n",
			want: []string{`listen (FILE: listen): expected an address such as 127.0.0.1:7440, as one value; found "a list"`}},
		{name: "a list of settings", file: "- listen: 127.0.0.1:1\n",
			want: []string{`config (FILE): expected a YAML file with settings, one "key: value" a line; found a list; write "key: value" without a dash before it`}},

		{name: "an unknown key", file: "data_dir: x\n",
			want: []string{`data_dir (FILE: data_dir): expected the name of a setting (did you mean data-dir?); found a key that does not exist`}},
		{name: "an unknown key unlike any", file: "replication-factor: 3\n",
			want: []string{`replication-factor (FILE: replication-factor): expected the name of a setting; found a key that does not exist`}},
		{name: "an unknown variable", environ: []string{"TIDEMARK_DATADIR=x"},
			want: []string{`datadir (TIDEMARK_DATADIR): expected the name of a setting (did you mean data-dir?); found a key that does not exist`}},
		{name: "a variable with a typing error", environ: []string{"TIDEMARK_GOCG=1"},
			want: []string{`gocg (TIDEMARK_GOCG): expected the name of a setting; found a key that does not exist`}},
		{name: "a key with a typing error", file: "max-requests-byte: 1MiB",
			want: []string{`max-requests-byte (FILE: max-requests-byte): expected the name of a setting (did you mean max-request-bytes?); found a key that does not exist`}},
		{name: "no file", environ: []string{"TIDEMARK_CONFIG=/does/not/exist"},
			want: []string{`config (/does/not/exist): expected a YAML file with settings; found that the file does not exist`}},
		{name: "no YAML", file: "listen: [",
			want: []string{`config (FILE): expected a YAML file with settings, one "key: value" a line; found yaml: line 1: did not find expected node content`}},

		{name: "a node twice", args: []string{"--peers=n1=127.0.0.1:7441,n2=10.0.0.2:7441,n2=10.0.0.3:7441"},
			want: []string{`peers (--peers): expected each node once; found "n2 twice"`}},
		{name: "an address twice", args: []string{"--peers=n1=127.0.0.1:7441,n2=10.0.0.2:7441,n3=10.0.0.2:7441"},
			want: []string{`peers (--peers): expected an address of its own for each node; found "10.0.0.2:7441 for n2 and n3"`}},
		{name: "a peer nowhere", args: []string{"--peers=n1=127.0.0.1:7441,n2=0.0.0.0:7441,n3=10.0.0.2:0"},
			want: []string{`peers (--peers): expected addresses that the other nodes can be reached at; found "n2=0.0.0.0:7441"`,
				`peers (--peers): expected addresses that the other nodes can be reached at; found "n3=10.0.0.2:0"`}},
		{name: "ten nodes", args: []string{"--peers=n1=127.0.0.1:7441,n2=h:2,n3=h:3,n4=h:4,n5=h:5,n6=h:6,n7=h:7,n8=h:8,n9=h:9,n10=h:10"},
			want: []string{`peers (--peers): expected at most 9 nodes: more make every write slower and nothing safer; found "10 nodes"`}},
		{name: "this node elsewhere", args: []string{"--peers=n1=10.0.0.1:7441,n2=10.0.0.2:7441", "--raft-advertise=10.0.0.9:7441"},
			want: []string{`peers (--peers): expected this node: n1=10.0.0.9:7441 (node-id and raft-advertise); found "n1=10.0.0.1:7441"`}},
		{name: "one port for two", args: []string{"--raft-listen=127.0.0.1:7440"},
			want: []string{`raft-listen (--raft-listen): expected another address than listen; found "127.0.0.1:7440"`}},
		{name: "nowhere to connect to", args: []string{"--raft-listen=:7441"},
			want: []string{`raft-advertise (from raft-listen): expected an address that other nodes can reach this one at, because raft-listen names no particular one; found ":7441"`}},
		{name: "in flight below one request", args: []string{"--max-in-flight-bytes=2MiB"},
			want: []string{`max-in-flight-bytes (--max-in-flight-bytes): expected at least max-request-bytes (4MiB), or the largest request could never be admitted; found "2MiB"`}},
		{name: "a memory limit below the caches", args: []string{"--memory-limit=512MiB", "--block-cache-bytes=1GiB"},
			want: []string{`memory-limit (--memory-limit): expected at least 1310MiB (64MiB + head-cache-bytes 34MiB + mark-cache-bytes 17MiB + block-cache-bytes 1GiB + 4 x memtable-bytes 34MiB + max-in-flight-bytes 34MiB + max-read-bytes 1MiB), or smaller values of those; found "512MiB"`}},
		{name: "more log kept than snapshots allow", args: []string{"--trailing-log-bytes=512MiB"},
			want: []string{`trailing-log-bytes (--trailing-log-bytes): expected at most snapshot-log-bytes (256MiB); found "512MiB"`}},
		{name: "election before heartbeat", args: []string{"--election-timeout=1s", "--heartbeat-timeout=2s"},
			want: []string{`election-timeout (--election-timeout): expected at least heartbeat-timeout (2s); found "1s"`}},

		{name: "all at once, from everywhere", args: []string{"--gogc=x"}, environ: []string{"TIDEMARK_LISTEN=x", "TIDEMARK_FOO=1"},
			file: "log-level: loud\nlisten: overridden\n",
			want: []string{
				`foo (TIDEMARK_FOO): expected the name of a setting; found a key that does not exist`,
				`listen (TIDEMARK_LISTEN): expected an address such as 127.0.0.1:7440; found "x"`,
				`log-level (FILE: log-level): expected debug or info or warn or error; found "loud"`,
				`gogc (--gogc): expected a percentage from 10 to 10000, without a sign; found "x"`,
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := load(t, c.args, c.environ, c.file)
			want := "the configuration has a problem:"
			if n := len(c.want); n != 1 {
				want = "the configuration has " + string(rune('0'+n)) + " problems:"
			}
			want += "\n  " + strings.Join(c.want, "\n  ")
			if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func TestVariablesThatAreNoSettingsAreLeftAlone(t *testing.T) {
	c, problems := load(t, nil, []string{
		"TIDEMARK_SERVER=somewhere:7440",
		// What Kubernetes sets for services called tidemark and tidemark-raft.
		"TIDEMARK_SERVICE_HOST=10.0.0.1", "TIDEMARK_SERVICE_PORT=7440", "TIDEMARK_SERVICE_PORT_GRPC=7440",
		"TIDEMARK_PORT=tcp://10.0.0.1:7440", "TIDEMARK_PORT_7440_TCP=tcp://10.0.0.1:7440",
		"TIDEMARK_PORT_7440_TCP_PROTO=tcp", "TIDEMARK_PORT_7440_TCP_PORT=7440", "TIDEMARK_PORT_7440_TCP_ADDR=10.0.0.1",
		"TIDEMARK_RAFT_SERVICE_HOST=10.0.0.1", "TIDEMARK_RAFT_PORT_7441_TCP=tcp://10.0.0.1:7441",
	}, "")
	if problems != "" {
		t.Fatal(problems)
	}
	for _, e := range c.Entries() {
		if e.Source.Origin != OriginDefault && e.Source.Origin != OriginDerived {
			t.Errorf("%s came from %s", e.Key, e.Source)
		}
	}
}

func TestAdvertiseFollowsListen(t *testing.T) {
	c, problems := load(t, []string{"--listen=10.1.2.3:7000", "--raft-listen=:7001", "--raft-advertise=10.1.2.3:7001"}, nil, "")
	if problems != "" {
		t.Fatal(problems)
	}
	if got, want := entry(t, c, "advertise"), (Entry{"advertise", "10.1.2.3:7000", Source{OriginDerived, "listen"}, "", "host:port"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := entry(t, c, "raft-advertise"), (Entry{"raft-advertise", "10.1.2.3:7001", Source{OriginFlag, "--raft-advertise"}, "", "host:port"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want map[string]string
	}{
		{"a smaller limit shrinks what is left at its default", []string{"--memory-limit=300MiB", "--mark-cache-bytes=16MiB"}, map[string]string{
			"memory-limit": "300MiB", "mark-cache-bytes": "16MiB", "head-cache-bytes": "18MiB",
			"block-cache-bytes": "72MiB", "memtable-bytes": "18MiB", "max-in-flight-bytes": "18MiB", "max-read-bytes": "36MiB"}},
		{"the smallest limit fits its own caches", []string{"--memory-limit=128MiB", "--max-request-bytes=16MiB"}, map[string]string{
			"memory-limit": "128MiB", "memtable-bytes": "4MiB", "block-cache-bytes": "19MiB", "max-in-flight-bytes": "16MiB", "max-read-bytes": "7MiB"}},
		{"larger caches raise the automatic limit", []string{"--block-cache-bytes=1GiB"}, map[string]string{
			"memory-limit": "1632MiB", "memtable-bytes": "64MiB"}},
		{"a larger limit changes nothing else", []string{"--memory-limit=4GiB"}, map[string]string{
			"memory-limit": "4GiB", "block-cache-bytes": "256MiB", "memtable-bytes": "64MiB"}},
	} {
		config, problems := load(t, c.args, nil, "")
		if problems != "" {
			t.Errorf("%s: %s", c.name, problems)
		}
		for key, want := range c.want {
			if got := entry(t, config, key).Value; got != want {
				t.Errorf("%s: %s is %s, want %s", c.name, key, got, want)
			}
		}
	}
}

func TestListeningToOthersIsWarnedAbout(t *testing.T) {
	const reach, danger = ": anyone who can reach this address can ", "; this version has no TLS and no authentication, so keep it on 127.0.0.1 or inside a network that you trust"
	c, problems := load(t, []string{"--listen=0.0.0.0:7440", "--http-listen=[::1]:7442", "--raft-listen=localhost:7441"}, nil, "")
	want := []string{
		"listen is 0.0.0.0:7440 (--listen)" + reach + "read and write everything" + danger,
		"advertise is 0.0.0.0:7440 (from listen): clients on other machines cannot use it; set advertise to the address that they reach this node at",
	}
	if got := c.Warnings(); problems != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("problems %q, warnings %q, want %q", problems, got, want)
	}
	c, problems = load(t, []string{"--raft-listen=db.example:7441", "--http-listen=10.0.0.1:0"}, nil, "")
	want = []string{
		"raft-listen is db.example:7441 (--raft-listen)" + reach + "speak as a node of the cluster" + danger,
		"http-listen is 10.0.0.1:0 (--http-listen)" + reach + "see the node's metrics" + danger,
	}
	if got := c.Warnings(); problems != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("problems %q, warnings %q, want %q", problems, got, want)
	}
}

// A node that is to be added names some members, not the voters: their number says nothing.
func TestOnlyTheVotersToBeAreCounted(t *testing.T) {
	const even = "peers names 2 nodes: an even number survives no more failures than 1 would"
	for node, want := range map[string][]string{"n2": {even}, "n4": nil} {
		c, problems := load(t, []string{"--node-id=" + node, "--peers=n1=127.0.0.1:1,n2=127.0.0.1:7441"}, nil, "")
		if got := c.Warnings(); problems != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: problems %q, warnings %q, want %q", node, problems, got, want)
		}
	}
}

// Other nodes sent clients to the loopback address that every node had by default.
func TestLoopbackForClientsOfAClusterIsWarnedAbout(t *testing.T) {
	const warning = "advertise is 127.0.0.1:7440 (from listen), where clients on other machines cannot reach this node, but raft-advertise is 10.0.0.1:7441: other nodes send clients there; set advertise to the address that they reach this node at"
	c, problems := load(t, []string{"--raft-listen=10.0.0.1:7441", "--peers=n1=10.0.0.1:7441"}, nil, "")
	if got := c.Warnings(); problems != "" || !slices.Contains(got, warning) {
		t.Errorf("problems %q, warnings %q, want %q among them", problems, got, warning)
	}
}

func TestAReserveThatAFlushDoesNotFitIsWarnedOf(t *testing.T) {
	const rest = ", which may still be written when writes are refused; with less, a disk that fills up ends the node"
	for _, tc := range []struct {
		args []string
		want string // "" = no warning
	}{
		{[]string{"--min-free-disk-bytes=128MiB"}, ""},
		{[]string{"--min-free-disk-bytes=127MiB"}, "min-free-disk-bytes is 127MiB (--min-free-disk-bytes): expected at least 128MiB (memtable-bytes 64MiB + max-in-flight-bytes 64MiB)" + rest},
		{[]string{"--min-free-disk-bytes=0"}, "min-free-disk-bytes is 0 (--min-free-disk-bytes): expected at least 128MiB (memtable-bytes 64MiB + max-in-flight-bytes 64MiB)" + rest},
		{[]string{"--memtable-bytes=256MiB", "--memory-limit=4GiB"}, "min-free-disk-bytes is 256MiB (default): expected at least 320MiB (memtable-bytes 256MiB + max-in-flight-bytes 64MiB)" + rest},
		{[]string{"--min-free-disk-bytes=1MiB", "--memory-limit=128MiB"}, "min-free-disk-bytes is 1MiB (--min-free-disk-bytes): expected at least 8MiB (memtable-bytes 4MiB + max-in-flight-bytes 4MiB)" + rest},
	} {
		var want []string
		if tc.want != "" {
			want = []string{tc.want}
		}
		c, problems := load(t, tc.args, nil, "")
		if got := c.Warnings(); problems != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: problems %q, warnings %q, want %q", tc.args, problems, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "1B": 1, "64KiB": 64 << 10, "256MiB": 256 << 20, "1.5GiB": 3 << 29, "2 TiB": 2 << 40,
		"10kB": 10_000, "10MB": 10_000_000, "9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "-1MiB", "1.5", "1e3", "1e3MiB", "InfMiB", "0x10MiB", "1..5MiB", "12mib", "9000000TiB", "9000000.5TiB", "9223372036854775808"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", text, got)
		}
	}
	for _, n := range []int64{0, 1, 1023, 1024, 1536, 4 << 20, 5<<30 + 1, 1 << 40, 1<<63 - 1} {
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Errorf("ParseSize(FormatSize(%d)) = %d, %v", n, got, err)
		}
	}
}

// The help text of serve, the documentation and the table are one thing.
func TestHelpNamesEverySetting(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	RegisterFlags(flags)
	usage := flags.FlagUsages()
	for _, s := range Settings() {
		line := "--" + s.Key + " " + s.Unit()
		if !strings.Contains(usage, line) || !strings.Contains(usage, s.Help) || !strings.Contains(usage, "["+s.Variable()+"]") {
			t.Errorf("help lacks %q with its text and variable", line)
		}
	}
}
