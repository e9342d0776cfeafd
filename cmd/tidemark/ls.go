package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// listFlags are what the command line says about a list.
type listFlags struct {
	client  clientFlags
	fresh   freshness
	limit   uint64
	deleted bool
}

func newListCommand() *cobra.Command {
	f := &listFlags{}
	cmd := &cobra.Command{
		Use:   "ls [ORG[/TYPE[/ID-PREFIX]]]",
		Short: "List orgs, the types of an org, or the aggregates of a type",
		Long: `List what there is, in byte order: without an argument the orgs, of an ORG its types, and
of ORG/TYPE its aggregates, all of them or those whose id begins with ID-PREFIX.
--output json prints one object a line.`,
		Example: `  tidemark ls
  tidemark ls acme
  tidemark ls acme/orders/48 --limit 20`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			parts := strings.SplitN(strings.Join(args, ""), "/", 3)
			for len(parts) > 1 && parts[len(parts)-1] == "" {
				parts = parts[:len(parts)-1] // acme/ is acme
			}
			if len(args) > 0 && parts[0] == "" || len(parts) > 1 && parts[1] == "" || len(parts) > 2 && strings.Contains(parts[2], "/") {
				return usageError("expected ORG, ORG/TYPE or ORG/TYPE/ID-PREFIX; found %q", args[0])
			}
			if len(args) > 0 && !utf8.ValidString(args[0]) {
				return notUTF8("ORG/TYPE/ID-PREFIX", args[0])
			}
			if err := f.fresh.check(); err != nil {
				return err
			}
			return f.run(cmd, parts)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().Uint64Var(&f.limit, "limit", 0, "print at most this `NUMBER`; 0 = all")
	cmd.Flags().BoolVar(&f.deleted, "include-deleted", false, "deleted aggregates too")
	f.fresh.register(cmd, "leader")
	f.client.register(cmd, 0)
	return cmd
}

// run lists what parts, the pieces of the argument, lead to.
func (f *listFlags) run(cmd *cobra.Command, parts []string) error {
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	l := &lister{flags: f, out: newTable(cmd.OutOrStdout(), "AGGREGATE", "VERSION", "EVENTS", "LAST COMMITTED AT", "STATE")}
	list := func(ctx context.Context, store pb.EventStoreServiceClient) error {
		return l.aggregates(ctx, store, parts)
	}
	switch {
	case parts[0] == "":
		l.out = newTable(cmd.OutOrStdout(), "ORG")
		list = l.orgs
	case len(parts) == 1:
		l.out = newTable(cmd.OutOrStdout(), "TYPE")
		list = func(ctx context.Context, store pb.EventStoreServiceClient) error {
			return l.types(ctx, store, parts[0])
		}
	}
	err := f.client.call(ctx, list)
	if l.printed > 0 && f.client.output == outputTable {
		if flushErr := l.out.flush(); err == nil {
			err = flushErr
		}
	}
	if err == nil && l.printed == 0 && parts[0] != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "nothing under %s\n", printable(strings.Join(parts, "/")))
	}
	return callError(err)
}

// lister prints what it is given until --limit is reached.
type lister struct {
	flags   *listFlags
	out     *table
	printed uint64
	// token of the page that comes next; kept here so that a list that has to go on at another
	// node goes on where it was.
	token string
}

// listPage is how many are asked for at a time.
const listPage = 1000

// page is how many the next page should have; 0 = no more are wanted.
func (l *lister) page() uint32 {
	if l.flags.limit == 0 {
		return listPage
	}
	return uint32(min(l.flags.limit-l.printed, listPage))
}

// names prints one page of orgs or types.
func (l *lister) names(key string, names []string) error {
	for _, name := range names {
		if l.page() == 0 {
			return nil
		}
		l.printed++
		var err error
		if l.flags.client.output == outputJSON {
			err = json.NewEncoder(l.out.w).Encode(map[string]string{key: name})
		} else {
			err = l.out.row(name)
		}
		if err != nil {
			return &exitError{code: exitFailure, err: err}
		}
	}
	return nil
}

func (l *lister) orgs(ctx context.Context, store pb.EventStoreServiceClient) error {
	fresh := &l.flags.fresh
	for {
		page, err := store.ListOrgs(ctx, &pb.ListOrgsRequest{
			PageSize: l.page(), PageToken: l.token,
			Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
		})
		if err == nil {
			err = l.names("org", page.GetOrgs())
		}
		if l.token = page.GetNextPageToken(); err != nil || l.token == "" || l.page() == 0 {
			return err
		}
	}
}

func (l *lister) types(ctx context.Context, store pb.EventStoreServiceClient, org string) error {
	fresh := &l.flags.fresh
	for {
		page, err := store.ListTypes(ctx, &pb.ListTypesRequest{
			Org: org, PageSize: l.page(), PageToken: l.token,
			Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
		})
		if err == nil {
			err = l.names("type", page.GetTypes())
		}
		if l.token = page.GetNextPageToken(); err != nil || l.token == "" || l.page() == 0 {
			return err
		}
	}
}

func (l *lister) aggregates(ctx context.Context, store pb.EventStoreServiceClient, parts []string) error {
	fresh := &l.flags.fresh
	for {
		page, err := store.ListAggregates(ctx, &pb.ListAggregatesRequest{
			Org: parts[0], Type: parts[1], IdPrefix: strings.Join(parts[2:], ""), IncludeDeleted: l.flags.deleted,
			PageSize: l.page(), PageToken: l.token,
			Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
		})
		if err != nil {
			return err
		}
		for _, a := range page.GetAggregates() {
			if l.page() == 0 {
				return nil
			}
			l.printed++
			if l.flags.client.output == outputJSON {
				err = writeJSON(l.out.w, a)
			} else {
				err = l.out.row(formatAggregate(a.GetAggregate()), a.GetVersion(), a.GetEventCount(), formatMilliseconds(a.GetLastCommittedAt()), aggregateState(a))
			}
			if err != nil {
				return &exitError{code: exitFailure, err: err}
			}
		}
		if l.token = page.GetNextPageToken(); l.token == "" || l.page() == 0 {
			return nil
		}
	}
}
