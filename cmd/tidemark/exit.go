package main

import "fmt"

// Exit codes of the client commands. Scripts depend on them.
const (
	exitOK       = 0
	exitFailure  = 1  // it failed, and nothing was written
	exitUsage    = 2  // the command line or the configuration is wrong
	exitUsed     = 20 // 2002: the writer's sequence was used already
	exitConflict = 21 // 2003, 3005, 4002: the aggregate is at another version
	exitInFlight = 22 // 2013: the same write is on its way
	exitUnknown  = 23 // the write may or may not have landed
	exitNotFound = 24 // there is no such aggregate or event
)

// Exit codes of serve; 71 and 72 are also those of inspect, verify and restore.
const (
	exitStorage  = 70 // the disk failed a write, a flush or a truncation
	exitDamaged  = 71 // stored data does not check out
	exitInUse    = 72 // another process has the data directory open
	exitRemoved  = 73 // the cluster has removed this node
	exitDiverged = 74 // a majority of the cluster has other data than this node
)

const exitCodesHelp = `Exit codes:
  0   ok
  1   failure; what was to be written or changed was not
  2   wrong usage or configuration
  20  2002 ClientIdempotencyViolation: the sequence was used already
  21  2003, 3005, 4002: the aggregate is at another version than --expect says
  22  2013 InflightDuplicateWrite: the same write is still in flight
  23  unknown outcome: the write or change may or may not have landed; or it
      has, and the answer could not be printed
  24  not found
  70  serve: the storage failed; restart once the disk is well
  71  serve, inspect, restore, verify: stored data is damaged
  72  serve, inspect, restore, verify: another process has the directory open
  73  serve: the node was removed from its cluster
  74  serve: the node's data differs from what a majority of its cluster has`

// exitError is an error that decides the exit code of the process.
type exitError struct {
	code int
	err  error
	// mayHaveHappened says that a write of this command may have landed.
	mayHaveHappened bool
	// advice says what to do; empty = the error speaks for itself.
	advice string
	// reported says that the command has told of it already (in the log, or before its last
	// words), and report is to be silent.
	reported bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake on the command line.
func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}
