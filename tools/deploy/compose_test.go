package deploy

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// TestCompose reads the compose file as docker compose does: schema, interpolation and all.
func TestCompose(t *testing.T) {
	path := in("deploy/compose/compose.yaml")
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: path}}, Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
	grace := 0
	for _, name := range []string{"n1", "n2", "n3"} {
		s, ok := p.Services[name]
		if !ok {
			t.Fatalf("there is no service %s", name)
		}
		if s.Image != "tidemark:latest" || !s.ReadOnly || s.StopGracePeriod == nil || s.StopGracePeriod.String() != "30s" {
			t.Errorf("%s is %+v", name, s)
		}
		if len(s.Volumes) != 1 || s.Volumes[0].Source != name || s.Volumes[0].Target != "/var/lib/tidemark" {
			t.Errorf("%s: volumes are %+v, expected its own at /var/lib/tidemark", name, s.Volumes)
		}
		grace++
	}
	if len(p.Services) != grace+3 {
		t.Errorf("there are %d services, expected three nodes, haproxy, prometheus and grafana", len(p.Services))
	}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to all networks of the machine, and nothing asks for a password", name, port.Published)
			}
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s mounts what is not there: %v", name, err)
			}
		}
	}
}
