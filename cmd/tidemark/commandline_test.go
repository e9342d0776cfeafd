package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Values that no command can use are mistakes, found before anything is sent, in words of ours.
func TestValuesThatNoCommandCanUse(t *testing.T) {
	const bad = "\xff"
	store := &fakeStore{}
	server := []string{"--server", store.start(t)}
	write := []string{"append", "acme/orders/1", "--client-id", "billing", "--seq", "7", "--event-type", "T", "--data", "{}"}
	with := func(args []string, more ...string) []string { return append(append([]string{}, args...), more...) }
	const number = "expected a whole number from 0 to 18446744073709551615, found "
	for _, c := range []struct {
		args []string
		want string
	}{
		{with(write, "--timeout", "-1s"), `--timeout: expected a time from 0, found -1s`},
		{[]string{"read", "acme/orders/1", "--timeout=-1ns"}, `--timeout: expected a time from 0, found -1ns`},
		{[]string{"ls", "--timeout=-1h"}, `--timeout: expected a time from 0, found -1h0m0s`},
		{[]string{"export", "--retry-for", "-1s"}, `--retry-for: expected a time from 0, found -1s`},
		{[]string{"read", "acme/orders/1", "--timeout", "5"}, `--timeout: expected a time such as 500ms, 10s or 1m30s, found "5"`},
		{with(write, "--seq", "-1"), `--seq: ` + number + `"-1"`},
		{with(write, "--previous-seq", "x"), `--previous-seq: ` + number + `"x"`},
		{with(write, "--seq", "18446744073709551616"), `--seq: ` + number + `"18446744073709551616"`},
		{[]string{"ls", "--limit", "-1"}, `--limit: ` + number + `"-1"`},
		{[]string{"read", "acme/orders/1", "--limit", "-1"}, `--limit: expected a whole number from 0 to 4294967295, found "-1"`},
		{[]string{"read", "acme/orders/1", "--backward=si"}, `--backward: expected true or false, found "si"`},
		{[]string{"bench", "append", "--connections", "-1"}, `--connections: expected a whole number from 0, found -1`},
		{[]string{"bench", "append", "--size", "1.5"}, `--size: expected a whole number from 0, found "1.5"`},
		{[]string{"find", "acme/orders/1", "billing", "-1"}, `unknown shorthand flag: '1' in -1`},
		{with(write, "--consistency"), `unknown flag: --consistency`},

		{[]string{"append", "acme/orders/" + bad, "--client-id", "billing", "--seq", "7", "--event-type", "T", "--data", "{}"}, `ORG/TYPE/ID: expected text in UTF-8, found "acme/orders/\xff"`},
		{with(write, "--client-id", bad), `--client-id: expected text in UTF-8, found "\xff"`},
		{with(write, "--event-type", bad), `--event-type: expected text in UTF-8, found "\xff"`},
		{with(write, "--event-id", "a"+bad), `--event-id: expected text in UTF-8, found "a\xff"`},
		{with(write, "--content-type", bad), `--content-type: expected text in UTF-8, found "\xff"`},
		{with(write, "--request-id", bad), `--request-id: expected text in UTF-8, found "\xff"`},
		{with(write, "--timeline", bad), `--timeline: expected text in UTF-8, found "\xff"`},
		{with(write, "--metadata", "a=b", "--metadata", "c="+bad), `--metadata: expected text in UTF-8, found "c=\xff"`},
		{with(write, "--data", `"`+bad+`"`), `--data: expected text in UTF-8, found "\"\xff\""`},
		{[]string{"read", "acme/orders/1", "--client", "a", "--client", bad}, `--client: expected text in UTF-8, found "\xff"`},
		{[]string{"mark", "acme/orders/1", bad}, `CLIENT_ID: expected text in UTF-8, found "\xff"`},
		{[]string{"find", "acme/orders/1", bad, "7"}, `CLIENT_ID: expected text in UTF-8, found "\xff"`},
		{[]string{"ls", "acme/" + bad}, `ORG/TYPE/ID-PREFIX: expected text in UTF-8, found "acme/\xff"`},
		{[]string{"export", "--org", bad}, `--org: expected text in UTF-8, found "\xff"`},
	} {
		args := with(c.args, server...)
		code, stdout, stderr := runCommand(t, args...)
		command := args[0]
		if command == "bench" {
			command += " " + args[1]
		}
		want := "tidemark: " + c.want + "\nSee \"tidemark " + command + " --help\".\n"
		if code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%q:\nexit %d, stdout %q, stderr %q\nwant 2, nothing, %q", args, code, stdout, stderr, want)
		}
	}
	store.asked(t)
}

// The name of a file is whatever bytes it is.
func TestAFileMayHaveAnyName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "\xff")
	if err := os.WriteFile(name, []byte("payload"), 0o600); err != nil {
		t.Fatal(err)
	}
	req := appendRequest()
	req.Writes[0].Events[0].Payload, req.Writes[0].Events[0].ContentType = []byte("payload"), contentBinary
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	code, _, stderr := runCommand(t, "append", "acme/orders/4821", "--server", store.start(t),
		"--client-id", "billing", "--seq", "7", "--event-type", "OrderPaid", "--file", name)
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d, stderr %q; want 0", code, stderr)
	}
	store.asked(t, req)
}

// Every flag of a type of the library's has words for what it takes.
func TestEveryFlagSaysWhatItTakes(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			switch kind := flag.Value.Type(); kind {
			case "string", "stringArray":
			default:
				if _, own := flag.Value.(choice); !own && expectedOf(flag) == "" && cmd.Flags().Lookup("server") != nil {
					t.Errorf("%s --%s: no words for a value of type %s", cmd.CommandPath(), flag.Name, kind)
				}
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
}
