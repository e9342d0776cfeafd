package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// maxSchemaFile is more than any server takes as a definition.
const maxSchemaFile = 1 << 20

func newSchemaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Register and look at schemas of event payloads",
		Long: `Register and look at schemas: what the payloads of an event type, in one version, on
aggregates of one type must look like. Writes that do not match are refused. An event of a
version that has no schema is accepted. A schema is never changed and never removed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSchemaRegisterCommand(), newSchemaGetCommand(), newSchemaListCommand())
	return cmd
}

// formatWords are the schema formats as the command line names them.
func formatWords() []string { return []string{"json-schema", "protobuf", "avro"} }

func formatOf(word string) pb.SchemaFormat {
	return pb.SchemaFormat(pb.SchemaFormat_value["SCHEMA_FORMAT_"+strings.ToUpper(strings.ReplaceAll(word, "-", "_"))])
}

func formatWord(f pb.SchemaFormat) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(f.String(), "SCHEMA_FORMAT_"), "_", "-"))
}

func newSchemaRegisterCommand() *cobra.Command {
	var client clientFlags
	var format, message, timeline string
	cmd := &cobra.Command{
		Use:   "register ORG/TYPE EVENT_TYPE VERSION FILE",
		Short: "Register the schema in a file; - reads the standard input",
		Long: `Register the schema in FILE for events of EVENT_TYPE and VERSION on aggregates of ORG/TYPE.
The same again does nothing. Another one under a version that has one is refused: register
it under the next version.

For protobuf, FILE is what protoc --include_imports --descriptor_set_out writes, and
--message says which of its messages payloads are; without it, that is the one named like
the event type, else the only message of the file that was compiled.

Registering again after an unknown outcome (exit code 23) does no harm.`,
		Example: `  tidemark schema register acme/orders Placed 1.0 placed.json \
      --format json-schema
  tidemark schema register acme/orders Placed 2.0 orders.binpb \
      --format protobuf --message acme.v2.Placed`,
		Args: exactly("ORG/TYPE", "EVENT_TYPE", "VERSION", "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := parseSchemaName(args)
			if err != nil {
				return err
			}
			definition, err := readSchemaFile(cmd, args[3])
			if err != nil {
				return err
			}
			req := &pb.RegisterSchemaRequest{
				Org: name.org, Type: name.typ, EventType: name.eventType, Schema: name.version,
				Format: formatOf(format), Definition: definition, Message: message, Timeline: timeline,
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.RegisterSchemaResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.RegisterSchema(ctx, req)
				return err
			})
			if err != nil {
				return alterError(err, "registration", againIsHarmless)
			}
			const done = "the schema is registered"
			if client.output == outputJSON {
				return unprinted(done, writeJSON(cmd.OutOrStdout(), resp))
			}
			result := "registered"
			if resp.GetAlreadyRegistered() {
				result = "registered already"
			}
			return unprinted(done, fields(cmd.OutOrStdout(), append([]any{"result", result}, schemaFields(resp.GetSchema())...)...))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(choice{&format, formatWords()}, "format", "what FILE holds (required)")
	flags.StringVar(&message, "message", "", "the full `NAME` of the Protobuf message that payloads are")
	flags.StringVar(&timeline, "timeline", "", "refuse unless the cluster is on this `TIMELINE`")
	client.register(cmd, 30*time.Second)
	_ = cmd.MarkFlagRequired("format") // the flag exists: this cannot fail
	return cmd
}

func newSchemaGetCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "get ORG/TYPE EVENT_TYPE VERSION",
		Short: "Print a schema's definition",
		Long: `Print the definition of a schema, byte for byte as it was registered; --output json prints
what else is known of it, too. Exit code 24: there is none.`,
		Example: `  tidemark schema get acme/orders Placed 1.0`,
		Args:    exactly("ORG/TYPE", "EVENT_TYPE", "VERSION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := parseSchemaName(args)
			if err != nil {
				return err
			}
			if err := fresh.check(); err != nil {
				return err
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.GetSchemaResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.GetSchema(ctx, &pb.GetSchemaRequest{
					Org: name.org, Type: name.typ, EventType: name.eventType, Schema: name.version,
					Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
				})
				return err
			})
			if err != nil {
				return callError(err)
			}
			if !resp.GetFound() {
				return &exitError{code: exitNotFound, err: fmt.Errorf("no schema is registered for version %s of %q on %s", args[2], args[1], args[0])}
			}
			if client.output == outputJSON {
				return writeJSON(cmd.OutOrStdout(), resp)
			}
			_, err = cmd.OutOrStdout().Write(resp.GetSchema().GetDefinition())
			return err
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "leader")
	client.register(cmd, 30*time.Second)
	return cmd
}

func newSchemaListCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "ls ORG[/TYPE] [EVENT_TYPE]",
		Short: "List the schemas of an org, of a type or of an event type",
		Long: `List the schemas of an org, of a type or of an event type. --output json prints one object
a line.`,
		Example: `  tidemark schema ls acme
  tidemark schema ls acme/orders Placed`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			org, typ, hasType := strings.Cut(args[0], "/")
			if org == "" || hasType && typ == "" || strings.Contains(typ, "/") || len(args) > 1 && (!hasType || args[1] == "") {
				return usageError("expected ORG, ORG/TYPE or ORG/TYPE EVENT_TYPE; found %q", strings.Join(args, " "))
			}
			req := &pb.ListSchemasRequest{Org: org, Type: typ, PageSize: listPage}
			if len(args) > 1 {
				req.EventType = args[1]
			}
			for _, text := range args {
				if !utf8.ValidString(text) {
					return notUTF8("ORG/TYPE EVENT_TYPE", text)
				}
			}
			if err := fresh.check(); err != nil {
				return err
			}
			req.Consistency, req.MinPosition, req.Timeline = fresh.level(), fresh.minPosition, fresh.timeline
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			out := newTable(cmd.OutOrStdout(), "AGGREGATE TYPE", "EVENT TYPE", "VERSION", "FORMAT", "BYTES", "REGISTERED AT")
			printed := false
			err := client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) error {
				for {
					page, err := store.ListSchemas(ctx, req)
					if err != nil {
						return err
					}
					for _, s := range page.GetSchemas() {
						printed = true
						if client.output == outputJSON {
							err = writeJSON(out.w, s)
						} else {
							err = out.row(s.GetOrg()+"/"+s.GetType(), s.GetEventType(), schemaVersion(s.GetSchema()), formatWord(s.GetFormat()),
								s.GetDefinitionBytes(), formatMilliseconds(s.GetRegisteredAt()))
						}
						if err != nil {
							return &exitError{code: exitFailure, err: err}
						}
					}
					if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
						return nil
					}
				}
			})
			if printed && client.output == outputTable {
				if flushErr := out.flush(); err == nil {
					err = flushErr
				}
			}
			return callError(err)
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "leader")
	client.register(cmd, 0)
	return cmd
}

// schemaName is what the command line calls a schema.
type schemaName struct {
	org, typ, eventType string
	version             *pb.SchemaVersion
}

func parseSchemaName(args []string) (n schemaName, err error) {
	var ok bool
	if n.org, n.typ, ok = strings.Cut(args[0], "/"); !ok || n.org == "" || n.typ == "" || strings.Contains(n.typ, "/") {
		return n, usageError("expected ORG/TYPE, found %q", args[0])
	}
	if n.eventType = args[1]; n.eventType == "" {
		return n, usageError("EVENT_TYPE: empty")
	}
	major, minor, ok := strings.Cut(args[2], ".")
	a, errMajor := strconv.ParseUint(major, 10, 32)
	b, errMinor := strconv.ParseUint(minor, 10, 32)
	if !ok || errMajor != nil || errMinor != nil {
		return n, usageError("VERSION: expected MAJOR.MINOR such as 1.0, found %q", args[2])
	}
	n.version = &pb.SchemaVersion{Major: uint32(a), Minor: uint32(b)}
	return n, nil
}

func schemaVersion(v *pb.SchemaVersion) string {
	return fmt.Sprintf("%d.%d", v.GetMajor(), v.GetMinor())
}

// schemaFields are the names and values of what is known of a schema.
func schemaFields(s *pb.Schema) []any {
	out := []any{
		"aggregate type", s.GetOrg() + "/" + s.GetType(), "event type", s.GetEventType(), "version", schemaVersion(s.GetSchema()),
		"format", formatWord(s.GetFormat()),
	}
	if s.GetMessage() != "" {
		out = append(out, "message", s.GetMessage())
	}
	return append(out, "bytes", s.GetDefinitionBytes(), "registered at", formatMilliseconds(s.GetRegisteredAt()))
}

// readSchemaFile reads a definition, which has a bound on the server.
func readSchemaFile(cmd *cobra.Command, name string) ([]byte, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, usageError("FILE: %v", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxSchemaFile+1))
	switch {
	case err != nil:
		return nil, usageError("FILE: %v", err)
	case len(b) > maxSchemaFile:
		return nil, usageError("FILE: expected a schema of up to %d bytes, found more", maxSchemaFile)
	}
	return b, nil
}
