package replication

import (
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// raftLogger gives raft's log lines to zap. What it does not override (a name, implied
// arguments) goes to a logger that drops everything.
type raftLogger struct {
	hclog.Logger
	z *zap.Logger
}

// Raft says several times a second that it cannot reach a node that is down. Of lines with
// one text, the first few of each span are written, and then one in many, so that they are
// neither lost nor all that there is to see.
const (
	raftLogSpan  = 10 * time.Second
	raftLogFirst = 6
	raftLogEvery = 100
)

// newRaftLogger returns a logger for raft; raft's info is our debug, since what an operator
// needs of it is logged here in the contract's words.
func newRaftLogger(z *zap.Logger) hclog.Logger {
	return &raftLogger{Logger: hclog.NewNullLogger(), z: thinned(z).WithOptions(zap.AddCallerSkip(1))}
}

// thinned returns a logger for what would be said again and again.
func thinned(z *zap.Logger) *zap.Logger {
	return z.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, raftLogSpan, raftLogFirst, raftLogEvery)
	}))
}

func (l *raftLogger) write(level zapcore.Level, msg string, args []any) {
	ce := l.z.Check(level, msg)
	if ce == nil {
		return
	}
	ce.Write(raftFields(args)...)
}

// raftFields makes fields of names and values in turn. An hclog.Format is a value that is
// still to be formatted.
func raftFields(args []any) []zap.Field {
	fields := make([]zap.Field, 0, len(args)/2)
	for i := 0; i+1 < len(args); i += 2 {
		value := args[i+1]
		if f, ok := value.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				value = fmt.Sprintf(format, f[1:]...)
			}
		}
		fields = append(fields, zap.Any(fmt.Sprint(args[i]), value))
	}
	return fields
}

func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	switch {
	case level >= hclog.Error:
		l.Error(msg, args...)
	case level == hclog.Warn:
		l.Warn(msg, args...)
	default:
		l.Debug(msg, args...)
	}
}

func (l *raftLogger) Trace(string, ...any)          {}
func (l *raftLogger) Debug(msg string, args ...any) { l.write(zapcore.DebugLevel, msg, args) }
func (l *raftLogger) Info(msg string, args ...any)  { l.write(zapcore.DebugLevel, msg, args) }

// Warn passes raft's warnings on, but for the one that every start of a node gives: that no
// leader was heard of, so it stands for election.
func (l *raftLogger) Warn(msg string, args ...any) {
	level := zapcore.WarnLevel
	if msg == "heartbeat timeout reached, starting election" {
		level = zapcore.DebugLevel
	}
	l.write(level, msg, args)
}

func (l *raftLogger) Error(msg string, args ...any) { l.write(zapcore.ErrorLevel, msg, args) }
func (l *raftLogger) IsTrace() bool                 { return false }
func (l *raftLogger) IsDebug() bool                 { return l.z.Core().Enabled(zapcore.DebugLevel) }
func (l *raftLogger) With(args ...any) hclog.Logger {
	return &raftLogger{Logger: l.Logger, z: l.z.With(raftFields(args)...)}
}
func (l *raftLogger) Named(name string) hclog.Logger {
	return &raftLogger{Logger: l.Logger, z: l.z.Named(name)}
}
func (l *raftLogger) ResetNamed(name string) hclog.Logger { return l.Named(name) }
