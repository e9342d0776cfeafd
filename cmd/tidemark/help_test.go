package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func TestHelpFitsATerminal(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		code, stdout, stderr := runCommand(t, args...)
		if code != exitOK || stderr != "" {
			t.Errorf("%q: exit %d, %s", args, code, stderr)
		}
		for line := range strings.SplitSeq(stdout, "\n") {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("%q: a line is wider than 80 columns: %q", args, line)
			}
		}
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				walk(sub)
			}
		}
	}
	walk(newRootCommand())
}

func TestWrapTextBreaksBetweenWords(t *testing.T) {
	const text = "one two\nthree four\n\nlist:\n  a b c d e f g h\n  i"
	const want = "one two\nthree\nfour\n\nlist:\n  a b c d e f g h\n  i"
	if got := wrapText(text, 9); got != want {
		t.Errorf("found\n%s\nwant\n%s", got, want)
	}
}

func TestWhatIsWrongWithACommandLineIsNamed(t *testing.T) {
	for _, c := range []struct{ args, stderr string }{
		{"apend", "unknown command \"apend\" for \"tidemark\"\n\nDid you mean this?\n  append\nSee \"tidemark --help\".\n"},
		{"config pritn", "unknown command \"pritn\" for \"tidemark config\"\nSee \"tidemark config --help\".\n"},
		{"help nope", "unknown command \"nope\" for \"tidemark\"\nSee \"tidemark help --help\".\n"},
		{"help config nope", "unknown command \"nope\" for \"tidemark config\"\nSee \"tidemark help --help\".\n"},
		{"read", "ORG/TYPE/ID: missing\nSee \"tidemark read --help\".\n"},
		{"find a/b/c", "CLIENT_ID, SEQ: missing\nSee \"tidemark find --help\".\n"},
		{"mark a/b/c d e", "expected ORG/TYPE/ID CLIENT_ID alone, found \"e\" too; is a quote missing?\nSee \"tidemark mark --help\".\n"},
		{"find a/b/c d 0", "SEQ: expected a whole number from 1, found \"0\"\nSee \"tidemark find --help\".\n"},
		{"ls a//b", "expected ORG, ORG/TYPE or ORG/TYPE/ID-PREFIX; found \"a//b\"\nSee \"tidemark ls --help\".\n"},
		{"append a/b/c --client-id w --event-type T --data {} --seq 0", "--seq: expected a number from 1, found 0\nSee \"tidemark append --help\".\n"},
		{"append a/b/c --client-id w --event-type T --data {} --seq 1 --confirm", "--confirm needs --event-id: it is what tells this event from another one with the same --seq\nSee \"tidemark append --help\".\n"},
		{"append a/b/c --client-id w --event-type T --data {} --seq 1 --confirm --event-id e --enforce=false", "--confirm needs --enforce: without it nothing is looked up\nSee \"tidemark append --help\".\n"},
	} {
		check(t, output{exitUsage, "", "tidemark: " + c.stderr}, strings.Fields(c.args)...)
	}
	for _, command := range []string{"read a/b/c", "aggregate a/b/c", "mark a/b/c d", "marks a/b/c", "find a/b/c d 1", "ls"} {
		name, _, _ := strings.Cut(command, " ")
		check(t, output{exitUsage, "", "tidemark: --min-position needs --timeline: positions of another timeline mean nothing here; \"tidemark aggregate\" shows the timeline\nSee \"tidemark " + name + " --help\".\n"},
			append(strings.Fields(command), "--min-position", "5")...)
	}
}

func TestTheVersionFlag(t *testing.T) {
	code, stdout, stderr := runCommand(t, "--version")
	if code != exitOK || !strings.HasPrefix(stdout, "tidemark version ") || stderr != "" {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}
