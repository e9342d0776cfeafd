package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// newCommands lists every command, in the order of the help text.
func newCommands() []*cobra.Command {
	return []*cobra.Command{
		newServeCommand(),
		newDevCommand(),
		newAppendCommand(),
		newReadCommand(),
		newTailCommand(),
		newAggregateCommand(),
		newMarkCommand(),
		newMarksCommand(),
		newFindCommand(),
		newListCommand(),
		newTrimCommand(),
		newDeleteCommand(),
		newCompactCommand(),
		newSchemaCommand(),
		newImportCommand(),
		newExportCommand(),
		newClusterCommand(),
		newHealthCommand(),
		newBackupCommand(),
		newRestoreCommand(),
		newInspectCommand(),
		newVerifyCommand(),
		newBenchCommand(),
		newConfigCommand(),
		newVersionCommand(),
	}
}

// newRootCommand builds the command tree.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "tidemark",
		Short: "An event store whose retries are safe",
		Long: `Tidemark is an event store whose retries are safe: an append that timed out can be
sent again without landing twice, and the answer says what happened to the first one.

Start a node with "tidemark serve"; it needs no configuration.

` + exitCodesHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	build := readBuildInfo()
	root.Version = build.Version + " (commit " + build.Commit + ", " + build.Go + ", " + build.System + ")"
	root.AddCommand(newCommands()...)
	root.SetHelpCommand(newHelpCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

// run executes one command line and returns the process's exit code. It is main without
// the process, for tests. SIGINT and SIGTERM cancel the command's context; a second one
// ends the process at once.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Once the first signal has arrived, give the next one its default effect.
	context.AfterFunc(ctx, stop)

	root := newRootCommand()
	started := false
	trackStart(root, &started)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	wrapHelp(root, helpWidth(stdout))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !started && !errors.As(err, new(*exitError)) {
		// The command's own code never ran: whatever cobra found is about the command line.
		err = commandLineError(err)
	}
	return report(cmd, err)
}

// trackStart makes every command check its flags, and record that its own code was reached.
func trackStart(cmd *cobra.Command, started *bool) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			if err := checkFlags(c); err != nil {
				return err
			}
			*started = true
			return inner(c, args)
		}
	}
	for _, sub := range cmd.Commands() {
		trackStart(sub, started)
	}
}

// report prints err, unless the command has done so, and returns its exit code.
func report(cmd *cobra.Command, err error) int {
	failure := &exitError{code: exitFailure, err: err}
	errors.As(err, &failure)
	if !failure.reported {
		tell(cmd, failure)
	}
	return failure.code
}

// tell prints a failure on stderr, as the command's --output says.
func tell(cmd *cobra.Command, failure *exitError) {
	stderr := cmd.ErrOrStderr()
	if outputFormat(cmd) == outputJSON {
		writeErrorJSON(stderr, failure)
		return
	}
	writeErrorText(stderr, failure)
	if failure.code == exitUsage {
		fmt.Fprintf(stderr, "See \"%s --help\".\n", cmd.CommandPath())
	}
}
