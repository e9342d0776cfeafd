// Command tidemark is the one binary of Tidemark: the node (serve) and the commands that
// talk to one (append, read, aggregate, mark, marks, find, ls, import, export, cluster, health,
// backup, bench), make a directory from a backup (restore), or look at what a stopped one has
// left (inspect, verify).
//
// It owns the command line: flags, exit codes, and what is printed where. One file per
// command, its test beside it; main.go holds the list. It may import everything and is
// imported by nothing.
//
// Invariants:
//   - Results go to stdout, everything said to a human goes to stderr.
//   - The exit code tells a script what happened (exit.go); a write that may have landed is
//     never reported with the code of one that did not.
//   - append sends a request once. It follows a definite "not the leader" answer, and never
//     resends by itself after an outcome that leaves open whether the write landed.
//   - What came over the wire is never printed to a terminal raw: control characters are
//     escaped (output.go).
//   - serve opens its ports before the data directory, stops in order within
//     shutdown-timeout, and ends by itself, with an exit code of its own, when its storage
//     fails or hangs.
//
// Dependencies: cobra is the command tree; protojson gives --output json the names of
// the proto files, so that a reader of api/ knows the output; zap writes the node's log;
// x/term asks the terminal for its width.
package main
