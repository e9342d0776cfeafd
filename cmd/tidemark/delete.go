package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// deleteFlags are the flags of delete, which count for every aggregate it is given.
type deleteFlags struct {
	client                                     clientFlags
	expect                                     uint64
	allowRecreate, restartVersions, forget, ok bool
	timeline                                   string
}

func newDeleteCommand() *cobra.Command {
	var f deleteFlags
	cmd := &cobra.Command{
		Use:   "delete ORG/TYPE/ID...",
		Short: "Delete aggregates, all of them or none",
		Long: `Delete aggregates: all that are given, or none. What they held cannot be read again. An
aggregate that is deleted already is left as it is.

Without --allow-recreate an aggregate can never be created again. With it, an append with
--create goes on behind the old version, or, with --restart-versions, at version 1.

What writers have recorded is not forgotten: a sequence that was used is refused as
before, also after the aggregate was created again. --forget-writers forgets it: every
sequence that was ever sent can then land again, also a delayed copy that is still on
its way. Stop the writers first.

Space is reclaimed in the background. For what must not stay on any disk, run "tidemark
compact" afterwards; docs/deleting.md says what that reaches and what it does not.

On a terminal the command asks first, unless --yes is given. Deleting again after an
unknown outcome (exit code 23) does no harm; with --allow-recreate it does if they were
created again meanwhile, unless --expect keeps it from their new lives.`,
		Example: `  tidemark delete acme/orders/4821 --expect 12
  tidemark delete acme/carts/1 acme/carts/2 --allow-recreate --yes`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactly("ORG/TYPE/ID")(cmd, args)
			}
			return nil
		},
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&f.expect, "expect", 0, "refuse unless each aggregate is at this `VERSION`")
	flags.BoolVar(&f.allowRecreate, "allow-recreate", false, "they may be created again later")
	flags.BoolVar(&f.restartVersions, "restart-versions", false, "they start at version 1 then; needs --allow-recreate")
	flags.BoolVar(&f.forget, "forget-writers", false, "forget which sequences were used; stop the writers first")
	flags.BoolVar(&f.ok, "yes", false, "do not ask")
	flags.StringVar(&f.timeline, "timeline", "", "refuse unless the cluster is on this `TIMELINE`")
	f.client.register(cmd, 30*time.Second)
	return cmd
}

func (f *deleteFlags) run(cmd *cobra.Command, args []string) error {
	if f.restartVersions && !f.allowRecreate {
		return usageError("--restart-versions needs --allow-recreate: what cannot be created again has no next version")
	}
	req := &pb.DeleteRequest{Timeline: f.timeline}
	for _, arg := range args {
		key, err := parseAggregate(arg)
		if err != nil {
			return err
		}
		d := &pb.AggregateDelete{
			Aggregate: key, AllowRecreate: f.allowRecreate, RestartVersions: f.restartVersions, ForgetWriters: f.forget,
		}
		if cmd.Flags().Changed("expect") {
			d.ExpectedVersion = &f.expect
		}
		req.Deletes = append(req.Deletes, d)
	}
	if err := f.ask(cmd, args); err != nil {
		return err
	}
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	var resp *pb.DeleteResponse
	err := f.client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
		resp, err = store.Delete(ctx, req)
		return err
	})
	if err != nil {
		again := againIsHarmless
		if f.allowRecreate {
			again = "Before giving the same command again, look whether they were created again meanwhile (\"tidemark aggregate\"): then it would delete their new lives."
		}
		return alterError(err, "delete", again)
	}
	return unprinted("the delete has happened", f.print(cmd.OutOrStdout(), resp))
}

func (f *deleteFlags) print(out io.Writer, resp *pb.DeleteResponse) error {
	if f.client.output == outputJSON {
		return writeJSON(out, resp)
	}
	for _, r := range resp.GetResults() {
		text := fmt.Sprintf("deleted at position %d", r.GetPosition())
		if r.GetPosition() == 0 {
			text = "was deleted already"
		}
		if _, err := fmt.Fprintln(out, printable(formatAggregate(r.GetAggregate())+" "+text)); err != nil {
			return err
		}
	}
	return nil
}

// ask has the operator say yes, if one sits at the terminal.
func (f *deleteFlags) ask(cmd *cobra.Command, args []string) error {
	if f.ok || !readsTerminal(cmd.InOrStdin()) {
		return nil
	}
	fmt.Fprint(cmd.ErrOrStderr(), printable(fmt.Sprintf("Delete %s? What is deleted cannot be brought back. [y/N] ", strings.Join(args, ", "))))
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if word := strings.ToLower(strings.TrimSpace(answer)); err != nil || word != "y" && word != "yes" {
		return &exitError{code: exitFailure, err: fmt.Errorf("not deleted: expected y, found %q", strings.TrimSpace(answer))}
	}
	return nil
}

// readsTerminal says whether somebody can answer there.
func readsTerminal(in io.Reader) bool {
	file, ok := in.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
