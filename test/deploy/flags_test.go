package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tidemark-db/tidemark/test/process"
)

// settings are what "tidemark config print" says that serve would run with.
type settings map[string]string

// configure asks the binary what a command line and an environment come to. serve would start
// with it, and warns of nothing but of ports that are open without a password.
func configure(t *testing.T, command, environment []string) settings {
	t.Helper()
	if len(command) == 0 || command[0] != "serve" {
		t.Fatalf("the command line is %q, expected serve", command)
	}
	cmd := exec.Command(process.Binary(t), append([]string{"config", "print", "--output", "json"}, command[1:]...)...)
	cmd.Env = environment
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("serve does not take %q with %q: %v\n%s", command, environment, err, stderr.String())
	}
	var printed struct {
		Settings []struct{ Key, Value string }
		Warnings []string
	}
	if err := json.Unmarshal(out, &printed); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := settings{}
	for _, e := range printed.Settings {
		s[e.Key] = e.Value
	}
	for _, w := range printed.Warnings {
		if !strings.Contains(w, "no TLS and no authentication") {
			t.Errorf("serve warns of %q: %s", command, w)
		}
	}
	return s
}

func (s settings) expect(t *testing.T, where string, want settings) {
	t.Helper()
	for key, v := range want {
		if s[key] != v {
			t.Errorf("%s: %s is %q, expected %q", where, key, s[key], v)
		}
	}
}

// imageEnvironment is what the Dockerfile sets.
func imageEnvironment(t *testing.T) (environment, ports []string) {
	t.Helper()
	text := read(t, "../Dockerfile")
	for _, m := range regexp.MustCompile(`\b(TIDEMARK_\w+=\S+)`).FindAllStringSubmatch(text, -1) {
		environment = append(environment, m[1])
	}
	if len(environment) != 3 {
		t.Fatalf("the Dockerfile sets %q, expected three settings", environment)
	}
	exposed := regexp.MustCompile(`(?m)^EXPOSE (.*)$`).FindStringSubmatch(text)
	return environment, strings.Fields(exposed[1])
}

func TestTheImageRunsANodeAlone(t *testing.T) {
	environment, ports := imageEnvironment(t)
	cmd := exec.Command(process.Binary(t), "config", "print", "--output", "json")
	cmd.Env = environment
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("with %q: %v", environment, err)
	}
	// The one warning that is right: nobody but the operator knows the address.
	if !bytes.Contains(out, []byte("set advertise to the address that they reach this node at")) {
		t.Errorf("there is no warning of advertise: %s", out)
	}
	s := configure(t, []string{"serve", "--advertise", "node.example:7440"}, environment)
	s.expect(t, "Dockerfile", settings{
		"data-dir": "/var/lib/tidemark", "listen": "0.0.0.0:7440", "raft-listen": "127.0.0.1:7441", "http-listen": "0.0.0.0:7442",
	})
	if want := []string{"7440", "7441", "7442"}; !slices.Equal(ports, want) {
		t.Errorf("the image exposes %q, expected %q", ports, want)
	}
}

func TestCompose(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	image, _ := imageEnvironment(t)
	for i := 1; i <= 3; i++ {
		id := fmt.Sprint("n", i)
		environment := slices.Clone(image)
		for k, v := range file.Services[id].Environment {
			environment = append(environment, k+"="+v)
		}
		s := configure(t, file.Services[id].Command, environment)
		s.expect(t, id, settings{
			"node-id": id, "data-dir": "/var/lib/tidemark", "listen": "0.0.0.0:7440", "raft-listen": "0.0.0.0:7441", "http-listen": "0.0.0.0:7442",
			"advertise": id + ":7440", "raft-advertise": id + ":7441", "peers": "n1=n1:7441,n2=n2:7441,n3=n3:7441",
		})
	}
}

// TestKubernetes starts the pods' command lines as Kubernetes would.
func TestKubernetes(t *testing.T) {
	type manifest struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]string
		Spec     struct {
			Replicas    int
			ServiceName string `yaml:"serviceName"`
			Template    struct {
				Spec struct {
					Containers []struct {
						Args  []string
						Ports []struct {
							Name          string
							ContainerPort int `yaml:"containerPort"`
						}
						VolumeMounts []struct {
							Name      string
							MountPath string `yaml:"mountPath"`
						} `yaml:"volumeMounts"`
					}
				}
			}
		}
	}
	var set, config manifest
	for d := yaml.NewDecoder(strings.NewReader(read(t, "kubernetes/tidemark.yaml"))); ; {
		var m manifest
		if err := d.Decode(&m); err != nil {
			break
		}
		switch m.Kind + "/" + m.Metadata.Name {
		case "StatefulSet/tidemark":
			set = m
		case "ConfigMap/tidemark":
			config = m
		}
	}
	if set.Spec.Replicas != 3 || len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("expected a StatefulSet of three pods with one container, found %+v", set)
	}
	pod := set.Spec.Template.Spec.Containers[0]
	file := filepath.Join(t.TempDir(), "tidemark.yaml")
	if err := os.WriteFile(file, []byte(config.Data["tidemark.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	domain := set.Spec.ServiceName + ".there.svc.cluster.local"
	var peers []string
	for i := range set.Spec.Replicas {
		peers = append(peers, fmt.Sprintf("tidemark-%d=tidemark-%d.%s:7441", i, i, domain))
	}
	image, _ := imageEnvironment(t)
	for i := range set.Spec.Replicas {
		name := fmt.Sprint("tidemark-", i)
		var args []string
		for _, a := range pod.Args {
			a = strings.NewReplacer("$(POD_NAME)", name, "$(POD_NAMESPACE)", "there", "/etc/tidemark/tidemark.yaml", file).Replace(a)
			args = append(args, a)
		}
		s := configure(t, args, image)
		s.expect(t, name, settings{
			"node-id": name, "data-dir": "/var/lib/tidemark", "log-format": "json", "listen": ":7440", "raft-listen": ":7441", "http-listen": ":7442",
			"advertise": name + "." + domain + ":7440", "raft-advertise": name + "." + domain + ":7441", "peers": strings.Join(peers, ","),
		})
	}
	ports, mounts := map[string]int{}, map[string]string{}
	for _, p := range pod.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, m := range pod.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	if want := map[string]int{"grpc": 7440, "tcp-raft": 7441, "http": 7442}; !maps.Equal(ports, want) {
		t.Errorf("the ports are %v, expected %v", ports, want)
	}
	if want := map[string]string{"data": "/var/lib/tidemark", "config": "/etc/tidemark"}; !maps.Equal(mounts, want) {
		t.Errorf("the mounts are %v, expected %v", mounts, want)
	}
}

// TestSystemdSettings: the file that the package installs, and the cluster that its comments show.
func TestSystemdSettings(t *testing.T) {
	text := read(t, "systemd/tidemark.yaml")
	commented := regexp.MustCompile(`(?m)^# ([a-z-]+: )`)
	if n := len(commented.FindAllString(text, -1)); n != 5 {
		t.Fatalf("%d settings are commented out, expected 5", n)
	}
	environment := regexp.MustCompile(`(?m)^# (TIDEMARK_\w+=\S+)$`).FindStringSubmatch(read(t, "systemd/tidemark.env"))
	for text, want := range map[string]settings{
		text: {"node-id": "n1", "listen": "127.0.0.1:7440", "peers": ""},
		commented.ReplaceAllString(text, "$1"): {
			"node-id": "n1", "listen": "10.0.0.1:7440", "http-listen": "10.0.0.1:7442", "advertise": "10.0.0.1:7440",
			"raft-advertise": "10.0.0.1:7441", "peers": "n1=10.0.0.1:7441,n2=10.0.0.2:7441,n3=10.0.0.3:7441",
		},
	} {
		file := filepath.Join(t.TempDir(), "tidemark.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := configure(t, []string{"serve", "--config", file}, environment[1:])
		want["data-dir"], want["log-format"], want["log-level"] = "/var/lib/tidemark", "json", "debug"
		s.expect(t, "tidemark.yaml", want)
	}
}

// TestSystemdUnit: systemd takes the unit, calls it hardened, and does not restart a node that
// needs a person.
func TestSystemdUnit(t *testing.T) {
	text := read(t, "systemd/tidemark.service")
	const command = "\nExecStart=/usr/bin/tidemark serve --config /etc/tidemark/tidemark.yaml\n"
	for _, want := range []string{
		command, "\nRestartPreventExitStatus=2 71 73 74\n", "\nKillSignal=SIGTERM\n", "\nTimeoutStopSec=30s\n", "\nStateDirectory=tidemark\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the unit does not say %q", strings.TrimSpace(want))
		}
	}
	file := filepath.Join(t.TempDir(), "tidemark.service")
	text = strings.Replace(text, "/usr/bin/tidemark", process.Binary(t), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", file},
		// Of 10.0. What is left: it has a network, and files in the host's root.
		{"security", "--no-pager", "--offline=true", "--threshold=13", file},
	} {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze (package systemd) %s: %v\n%s", args[0], err, out)
		}
	}
}
