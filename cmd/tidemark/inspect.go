package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// inspectFlags are what the command line says about what to show of a directory.
type inspectFlags struct {
	output    string
	aggregate string
	from, to  uint64
}

// inspectLists are what inspect shows, in the order of the help text.
var inspectLists = []string{"summary", "entries", "batches", "heads", "writers", "positions", "raft"}

func newInspectCommand() *cobra.Command {
	f := &inspectFlags{}
	cmd := &cobra.Command{
		Use:   "inspect DIR [WHAT]",
		Short: "Show what a stopped node's data directory holds",
		Long: `Show what is in the data directory of a node that does not run, without the code that a
node reads it with, and without changing anything: a mount that is read-only will do.

WHAT is one of:
  summary    what there is and how far it is (the default)
  entries    the entries of the log
  batches    every batch
  heads      the newest state of every aggregate
  writers    every writer row: the permanent header of each event
  positions  what each position of the commit order holds
  raft       term, vote, members, snapshots

A node applies the entries of its log to its history, and after a crash again those that the
history had not on disk. What they make is shown too, with SOURCE "tail", and what they trim or
delete is not: so it will be when the node has started, unless the leader of its cluster has other
entries in their place.
--output json prints one object a line.`,
		Example: `  tidemark inspect tidemark-data
  tidemark inspect tidemark-data batches --aggregate acme/orders/1 --output json
  tidemark inspect tidemark-data entries --from 1000 --to 1020`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("DIR: missing; expected a node's data directory")
			}
			if len(args) > 2 {
				return usageError("expected DIR and what to show of it, found %q too", args[2])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			what := inspectLists[0]
			if len(args) > 1 {
				what = args[1]
			}
			return f.run(cmd, args[0], what)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.aggregate, "aggregate", "", "only this aggregate (`ORG/TYPE/ID`); for batches, heads, writers and positions")
	flags.Uint64Var(&f.from, "from", 0, "first entry, version (batches, writers) or position to show (`NUMBER`)")
	flags.Uint64Var(&f.to, "to", 0, "last one to show (`NUMBER`); 0 = open")
	registerOutput(cmd, &f.output)
	return cmd
}

func (f *inspectFlags) run(cmd *cobra.Command, dir, what string) (err error) {
	q := inspect.Query{From: f.from, To: f.to}
	if f.aggregate != "" {
		key, err := parseAggregate(f.aggregate)
		if err != nil {
			return err
		}
		q.Aggregate = inspect.AggregateOf(key)
	}
	p := &inspector{cmd: cmd, json: f.output == outputJSON}
	show, ok := map[string]func(*inspect.Directory, inspect.Query) error{
		"summary": p.summary, "entries": p.entries, "batches": p.batches, "heads": p.heads,
		"writers": p.writers, "positions": p.positions, "raft": p.raft,
	}[what]
	if !ok {
		return usageError("expected one of %s, found %q", strings.Join(inspectLists, ", "), what)
	}
	d, err := inspect.Open(dir)
	if err != nil {
		return inspectError(err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	err = show(d, q)
	if p.table != nil {
		// What came before a failure is worth seeing.
		err = errors.Join(err, p.table.flush())
	}
	return inspectError(err)
}

// inspectError gives an error of reading a directory its exit code.
func inspectError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, inspect.ErrInUse):
		return &exitError{code: exitInUse, err: err}
	case errors.Is(err, inspect.ErrNoData), errors.Is(err, inspect.ErrNotBackup):
		return &exitError{code: exitUsage, err: err}
	case inspect.Damaged(err):
		return &exitError{code: exitDamaged, err: err, advice: `"tidemark verify" finds everything that is damaged`}
	}
	return &exitError{code: exitFailure, err: err}
}

// inspector prints what a directory holds.
type inspector struct {
	cmd   *cobra.Command
	json  bool
	table *table
}

// print prints one object: as JSON, or as a row below header.
func (p *inspector) print(object any, header []string, cells ...any) error {
	if p.json {
		return json.NewEncoder(p.cmd.OutOrStdout()).Encode(object)
	}
	if p.table == nil {
		p.table = newTable(p.cmd.OutOrStdout(), header...)
		p.table.width = terminalWidth(p.cmd.OutOrStdout())
	}
	return p.table.row(cells...)
}

// note tells what of the log's end a crash has cut short.
func (p *inspector) note(torn string) {
	if torn != "" {
		fmt.Fprintf(p.cmd.ErrOrStderr(), "The end of the log was cut short, and is left out: %s\n", torn)
	}
}

func (p *inspector) entries(d *inspect.Directory, q inspect.Query) error {
	torn, err := d.Entries(q, func(e inspect.Entry, in inspect.Source) error {
		o := entryJSON{Index: e.Index, Term: e.Term, Type: e.Type.String(), AppendedAt: e.AppendedAt, File: e.File, Offset: e.Offset, Size: e.Size, Applied: in == inspect.InHistory}
		detail := ""
		switch e.Type {
		case inspect.TypeCommand:
			c, err := e.Command()
			if err != nil {
				return err
			}
			o.setCommand(&c)
			detail = describeRequests(o.Requests)
		case inspect.TypeConfiguration:
			members, err := e.Members()
			if err != nil {
				return err
			}
			o.Members = membersJSON(members)
			detail = describeMembers(members)
		}
		return p.print(o, []string{"INDEX", "TERM", "TYPE", "BYTES", "SOURCE", "CONTENT"}, e.Index, e.Term, e.Type, e.Size, in, detail)
	})
	p.note(torn)
	return err
}

func (p *inspector) batches(d *inspect.Directory, q inspect.Query) error {
	_, err := d.Read(q, inspect.Content{Batch: func(b *inspect.Batch, in inspect.Source) error {
		m := b.Message()
		if p.json {
			raw, err := appendJSON(nil, m)
			if err != nil {
				return err
			}
			return p.print(batchJSON{Source: in.String(), Batch: raw}, nil)
		}
		for _, e := range m.GetEvents() {
			err := p.print(nil, []string{"AGGREGATE", "VERSION", "EVENT", "POSITION", "CLIENT", "SEQ", "TYPE", "SOURCE", "PAYLOAD"},
				b.Aggregate, b.Version, e.GetEventNumber(), b.Position, b.Client, e.GetClientSeq(), e.GetType(), in, formatPayload(e, payloadBytes))
			if err != nil {
				return err
			}
		}
		return nil
	}})
	return err
}

func (p *inspector) heads(d *inspect.Directory, q inspect.Query) error {
	_, err := d.Read(q, inspect.Content{Head: func(h *inspect.Head, in inspect.Source) error {
		state := "live"
		if h.Deleted {
			state = "deleted"
		}
		return p.print(headOf(h, in), []string{"AGGREGATE", "VERSION", "INCARNATION", "FIRST VERSION", "EVENTS", "POSITION", "LAST CLIENT", "MARK", "STATE", "SOURCE", "CHAIN HASH"},
			h.Aggregate, h.Version, h.Incarnation, h.Floor, h.EventCount, h.Position, h.LastClient, h.LastMark, state, in, fmt.Sprintf("%x", h.Chain))
	}})
	return err
}

func (p *inspector) writers(d *inspect.Directory, q inspect.Query) error {
	_, err := d.Read(q, inspect.Content{Row: func(r *inspect.Row, in inspect.Source) error {
		return p.print(rowOf(r, in), []string{"AGGREGATE", "CLIENT", "SEQ", "VERSION", "EVENT", "POSITION", "SOURCE", "EVENT ID"},
			r.Aggregate, r.Client, r.ClientSeq, r.Version, r.EventNumber, r.Position, in, shorten(r.EventID))
	}})
	return err
}

func (p *inspector) positions(d *inspect.Directory, q inspect.Query) error {
	_, err := d.Read(q, inspect.Content{Change: func(c inspect.Change, in inspect.Source) error {
		return p.print(changeJSON{Source: in.String(), Position: c.Position, Aggregate: c.Aggregate.String(), Incarnation: c.Incarnation, Version: c.Version, Kind: c.Kind.String()},
			[]string{"POSITION", "KIND", "VERSION", "INCARNATION", "SOURCE", "AGGREGATE"}, c.Position, c.Kind, c.Version, c.Incarnation, in, c.Aggregate)
	}})
	return err
}

// summary counts what there is.
func (p *inspector) summary(d *inspect.Directory, _ inspect.Query) error {
	s := summaryJSON{}
	count := func(n *counted, in inspect.Source) error {
		if in == inspect.InTail {
			n.InTail++
		} else {
			n.InHistory++
		}
		return nil
	}
	applied, err := d.Read(inspect.Query{}, inspect.Content{
		Batch: func(_ *inspect.Batch, in inspect.Source) error { return count(&s.Batches, in) },
		Row:   func(_ *inspect.Row, in inspect.Source) error { return count(&s.Writers, in) },
	})
	if err != nil {
		return err
	}
	if _, err := d.Read(inspect.Query{}, inspect.Content{Head: func(*inspect.Head, inspect.Source) error { s.Aggregates++; return nil }}); err != nil {
		return err
	}
	r, err := d.Raft()
	if err != nil {
		return err
	}
	p.note(r.Torn)
	s.LastPosition, s.Digest, s.Raft = applied.Position, fmt.Sprintf("%x", applied.Digest), raftOf(&r)
	if p.json {
		return p.print(s, nil)
	}
	return fields(p.cmd.OutOrStdout(), append(raftFields(s.Raft),
		"aggregates", s.Aggregates,
		"batches", s.Batches,
		"writer rows", s.Writers,
		"last position", s.LastPosition,
		"digest", s.Digest)...)
}

func (p *inspector) raft(d *inspect.Directory, _ inspect.Query) error {
	r, err := d.Raft()
	if err != nil {
		return err
	}
	p.note(r.Torn)
	if p.json {
		return p.print(raftOf(&r), nil)
	}
	return fields(p.cmd.OutOrStdout(), raftFields(raftOf(&r))...)
}
