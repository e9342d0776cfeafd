package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// buildInfo says what this binary is.
type buildInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

// readBuildInfo reads what the Go tool recorded in the binary: the version is the tag that
// was built, or a pseudo-version with the commit's time and hash.
func readBuildInfo() buildInfo {
	info := buildInfo{Version: "unknown", Commit: "unknown", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	if build.Main.Version != "" {
		info.Version = build.Main.Version
	}
	modified := false
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		info.Commit += " (modified)"
	}
	return info
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, commit and Go version of this binary",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := readBuildInfo()
			if output == outputJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
			}
			return fields(cmd.OutOrStdout(),
				"version", info.Version, "commit", info.Commit, "go", info.Go, "system", info.System)
		},
	}
	registerOutput(cmd, &output)
	return cmd
}
