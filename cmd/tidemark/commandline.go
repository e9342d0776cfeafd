package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandLineError is what cobra found wrong with the command line. Its suggestions are
// indented with tabs, which are escaped in the text of an error.
func commandLineError(err error) error {
	if errors.As(err, new(*exitError)) {
		return err
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		expected := expectedOf(flag)
		if expected == "" {
			expected = errors.Unwrap(invalid).Error()
		}
		return usageError("--%s: %s, found %q", flag.Name, expected, invalid.GetValue())
	}
	return usageError("%s", strings.TrimSpace(strings.ReplaceAll(err.Error(), "\t", "  ")))
}

// expectedOf describes the values of a flag whose type is the flag library's; "" for another
// one, whose own error does.
func expectedOf(flag *pflag.Flag) string {
	switch flag.Value.Type() {
	case "uint64":
		return fmt.Sprintf("expected a whole number from 0 to %d", uint64(math.MaxUint64))
	case "uint32":
		return fmt.Sprintf("expected a whole number from 0 to %d", math.MaxUint32)
	case "int":
		return "expected a whole number from 0"
	case "duration":
		return "expected a time such as 500ms, 10s or 1m30s"
	case "bool":
		return "expected true or false"
	}
	return ""
}

// checkFlags finds values that the flag library takes and no command can use: numbers and
// times below 0, and text that is not UTF-8, which no message can carry.
func checkFlags(cmd *cobra.Command) (err error) {
	client := cmd.Flags().Lookup("server") != nil
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		text := flag.Value.String()
		switch flag.Value.Type() {
		case "int":
			if strings.HasPrefix(text, "-") {
				err = usageError("--%s: expected a whole number from 0, found %s", flag.Name, text)
			}
		case "duration":
			if d, parseErr := time.ParseDuration(text); parseErr == nil && d < 0 {
				err = usageError("--%s: expected a time from 0, found %s", flag.Name, text)
			}
		case "string", "stringArray":
			// A file is named by whatever bytes its name has.
			if client && flag.Name != "file" {
				for _, value := range texts(flag.Value) {
					if !utf8.ValidString(value) {
						err = notUTF8("--"+flag.Name, value)
					}
				}
			}
		}
	})
	return err
}

// texts are the values of a flag that may be given several times, or the only one.
func texts(value pflag.Value) []string {
	if list, ok := value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{value.String()}
}

func notUTF8(name, found string) error {
	return usageError("%s: expected text in UTF-8, found %q", name, found)
}

// exactly demands the arguments that names lists, and says which one is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usageError("%s: missing", strings.Join(names[len(args):], ", "))
		case len(args) > len(names):
			return usageError("expected %s alone, found %q too; is a quote missing?", strings.Join(names, " "), args[len(names)])
		}
		for i, name := range names {
			// A file is named by whatever bytes its name has.
			if name != "FILE" && !utf8.ValidString(args[i]) {
				return notUTF8(name, args[i])
			}
		}
		return nil
	}
}
