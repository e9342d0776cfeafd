package history

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// pebbleLogger is where Pebble logs. Pebble expects Fatalf not to return, and may hold any of
// its locks when it calls it.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.s.log.Core().Enabled(zap.DebugLevel) {
		l.s.log.Debug(fmt.Sprintf("history: "+format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Error(fmt.Sprintf("history: "+format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.stop(fmt.Errorf("pebble cannot go on: "+format, args...))
}

// stop reports an error after which Pebble must not go on, and does not return.
func (s *Store) stop(err error) {
	s.report(fmt.Errorf("history: %w; the process must end, and what the history lost is applied again at the next start", err))
	select {}
}

// report hands a fatal error to its owner, once.
func (s *Store) report(err error) {
	if !s.fatal.CompareAndSwap(nil, &err) {
		return
	}
	close(s.broken)
	s.log.Error(err.Error())
	if s.onFatal == nil {
		panic(err)
	}
	s.onFatal(err)
}

// background hands an error of a flush or a compaction to its owner. Pebble tries again
// without a pause, and the loader of table statistics does so for ever, so an error is only
// passed on if it is not the one before once more.
func (s *Store) background(err error) {
	err = s.storageError("flush or compaction in "+s.dir, err)
	text := err.Error()
	if last := s.lastBackground.Swap(&text); last != nil && *last == text {
		return
	}
	if s.onBackground == nil {
		s.report(err)
		return
	}
	s.log.Error(text)
	s.onBackground(err)
}

// unlessBroken calls Pebble and returns what it returns, or the fatal error as soon as there is
// one: what waits for a disk that is full waits for as long as that is.
func (s *Store) unlessBroken(call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }() // ends with the call, or with the process, which has to end then
	select {
	case err := <-done:
		return err
	case <-s.broken:
		return *s.fatal.Load()
	}
}

func (s *Store) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: s.background,
		// Whoever came across the damage gets it as an error, too: a reader's is that reader's
		// alone, a compaction's comes as a background error.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			if last := s.lastDamaged.Swap(&info.Path); last == nil || *last != info.Path {
				s.log.Error("history: damaged file", zap.String("file", info.Path), zap.Error(info.Details))
			}
		},
		FlushEnd: func(info pebble.FlushInfo) {
			if info.Err == nil {
				s.lastBackground.Store(nil)
			}
		},
		DiskSlow: func(info pebble.DiskSlowInfo) {
			s.stalls.slow.Add(1)
			s.log.Warn("history: " + info.String())
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			s.stalls.begin(time.Now())
			s.log.Warn("history: commits wait", zap.String("reason", info.Reason))
		},
		WriteStallEnd: func() {
			s.stalls.end(time.Now())
			s.log.Info("history: commits go on")
		},
	}
}
