package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// TestDockerfile reads the Dockerfile as docker build does.
func TestDockerfile(t *testing.T) {
	r, err := parser.Parse(strings.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range r.Warnings {
		t.Errorf("%+v", w)
	}
	stages, _, err := instructions.Parse(r.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, s := range stages {
		found = append(found, s.BaseName+" AS "+s.Name)
	}
	// prebuilt stands before the one stage whose base must be pulled.
	if want := []string{"scratch AS base", "base AS prebuilt", "golang:1.26 AS build", "base AS "}; !slices.Equal(found, want) {
		t.Fatalf("the stages are %q, expected %q", found, want)
	}
	var user string
	var ports []string
	health := false
	for _, c := range stages[0].Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.ExposeCommand:
			ports = append(ports, c.Ports...)
		case *instructions.HealthCheckCommand:
			// Without a shell, only this form works.
			health = slices.Equal(c.Health.Test, []string{"CMD", "/usr/bin/tidemark", "health"})
		case *instructions.EntrypointCommand:
			if c.PrependShell || !slices.Equal(c.CmdLine, []string{"/usr/bin/tidemark"}) {
				t.Errorf("ENTRYPOINT is %v", c.CmdLine)
			}
		}
	}
	// Kubernetes proves runAsNonRoot by number only.
	if user != "65532:65532" || !slices.Equal(ports, []string{"7440", "7441", "7442"}) || !health {
		t.Errorf("user %q, ports %q, health check by the binary %v", user, ports, health)
	}
	for _, i := range []int{1, 3} {
		var copies, volumes []string
		for _, c := range stages[i].Commands {
			switch c := c.(type) {
			case *instructions.CopyCommand:
				copies = append(copies, c.DestPath+" "+c.Chown)
			case *instructions.VolumeCommand:
				volumes = append(volumes, c.Volumes...)
			}
		}
		if want := []string{"/usr/bin/tidemark ", "/var/lib/tidemark 65532:65532"}; !slices.Equal(copies, want) || !slices.Equal(volumes, []string{"/var/lib/tidemark"}) {
			t.Errorf("stage %d copies %q, expected %q; volumes %q", i, copies, want, volumes)
		}
	}
}
