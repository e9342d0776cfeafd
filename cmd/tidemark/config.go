package main

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/config"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration of a node",
		Args:  cobra.NoArgs, // with RunE, so that a word that is no command is an error
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigPrintCommand())
	return cmd
}

func newConfigPrintCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print every setting, its value and where it came from",
		Long: `Print every setting that "tidemark serve" would run with, given the same flags,
environment and file, and where each value came from: a flag, a variable, "FILE: key",
"from KEY" if it follows from another setting, or the default.

Exits with 2, and says everything that is wrong, if serve would not start with it.`,
		Example: `  tidemark config print --config tidemark.yaml
  TIDEMARK_LISTEN=10.0.0.1:7440 tidemark config print --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			if output == outputJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
					Settings []config.Entry `json:"settings"`
					Warnings []string       `json:"warnings"`
				}{c.Entries(), append([]string{}, c.Warnings()...)})
			}
			t := newTable(cmd.OutOrStdout(), "KEY", "VALUE", "SOURCE")
			for _, e := range c.Entries() {
				if err := t.row(e.Key, c.Shown(e.Key), e.Source); err != nil {
					return err
				}
			}
			for _, w := range c.Warnings() {
				cmd.PrintErrln("tidemark: warning: " + w)
			}
			return t.flush()
		},
	}
	registerOutput(cmd, &output)
	config.RegisterFlags(cmd.Flags())
	return cmd
}

// loadConfig resolves the settings of serve from cmd's flags and the environment.
func loadConfig(cmd *cobra.Command) (*config.Config, error) {
	c, err := config.Load(cmd.Flags(), os.Environ())
	if err != nil {
		return nil, usageError("%w", err)
	}
	return c, nil
}
