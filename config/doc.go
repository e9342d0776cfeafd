// Package config holds the settings of a node (tidemark serve): what they are, where their
// values come from, and what is wrong with them.
//
// It owns the table of settings (settings.go). Flags, environment variables, keys of the
// YAML file, the help text, docs/configuration.md and validation all come from that table,
// so they cannot differ. It may import nothing of this module.
//
// Invariants:
//   - A value is taken from the flag, else the environment (TIDEMARK_ and the key in upper
//     case), else the YAML file, else the default.
//   - A Config is resolved: what one setting takes from another (advertise from listen, the
//     cache sizes from memory-limit) is already filled in, and Entries says so.
//   - Load reports everything that is wrong at once, each problem with its key, where the
//     value came from, what was expected and what was found. It has no side effects beyond
//     reading the file.
//
// Dependencies: koanf merges the layers and its providers read them (YAML file, environment,
// pflag); pflag is what cobra parses flags with.
package config
