package replication

import (
	"errors"
	"fmt"

	"github.com/tidemark-db/tidemark/wal/history"
)

// AdviseOn adds to an error about damaged files of the history what only the log can tell: that
// nothing is lost with them. Other errors it returns as they are.
func (s *Shard) AdviseOn(err error) error {
	if !errors.Is(err, history.ErrDamaged) || s.tail == nil {
		return err
	}
	// Snapshots share files with the history, so what is damaged may be damaged there as well;
	// with every entry in the log, neither is needed.
	if first, logErr := s.tail.FirstIndex(); logErr != nil || first != 1 {
		return err
	}
	return fmt.Errorf("%w; here the log still reaches back to its first entry: %s and %s may be removed, and the next start makes them again",
		err, s.path("history"), s.path("snapshots"))
}
