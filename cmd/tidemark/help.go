package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// wrapHelp makes help texts fit width columns: the prose and the flags.
func wrapHelp(root *cobra.Command, width int) {
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(),
		"Flags.FlagUsages ", fmt.Sprintf("Flags.FlagUsagesWrapped %d ", width)))
	wrapProse(root, width)
}

func wrapProse(cmd *cobra.Command, width int) {
	cmd.Long = wrapText(cmd.Long, width)
	for _, sub := range cmd.Commands() {
		wrapProse(sub, width)
	}
}

// wrapText breaks paragraphs between words. Lines that begin with a space stay as they are,
// and so does a line that announces them with a colon.
func wrapText(text string, width int) string {
	var out []string
	column := 0 // of the line being filled; 0 = a new one begins
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			out = append(out, line)
			column = 0
			continue
		}
		for word := range strings.FieldsSeq(line) {
			n := utf8.RuneCountInString(word)
			if column > 0 && column+1+n <= width {
				out[len(out)-1] += " " + word
				column += 1 + n
				continue
			}
			out = append(out, word)
			column = n
		}
	}
	return strings.Join(out, "\n")
}

// newHelpCommand is cobra's, except that a command that does not exist is a mistake.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil {
				return commandLineError(err)
			}
			if len(rest) > 0 {
				return usageError("unknown command %q for %q", rest[0], found.CommandPath())
			}
			found.InitDefaultHelpFlag()
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}
