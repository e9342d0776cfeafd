package peer

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	// complaintEvery is how often the same thing is logged of the same node: those that are
	// refused try again and again.
	complaintEvery = 30 * time.Second
	maxComplaints  = 128 // remembered; what comes on top is not logged
)

// complaints remembers what was logged lately.
type complaints struct {
	mu   sync.Mutex
	last map[complaint]*said
}

type complaint struct{ about, what string }

type said struct {
	at     time.Time
	unsaid int // times it was not logged since
}

// due reports whether a complaint is to be logged now, and how many like it were not.
func (c *complaints) due(k complaint, now time.Time) (unsaid int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.last[k]; s != nil {
		if now.Sub(s.at) < complaintEvery {
			s.unsaid++
			return 0, false
		}
		unsaid = s.unsaid
		*s = said{at: now}
		return unsaid, true
	}
	if len(c.last) >= maxComplaints {
		for k, s := range c.last {
			if now.Sub(s.at) >= complaintEvery {
				delete(c.last, k)
			}
		}
		if len(c.last) >= maxComplaints {
			return 0, false
		}
	}
	if c.last == nil {
		c.last = make(map[complaint]*said)
	}
	c.last[k] = &said{at: now}
	return 0, true
}

// complain logs what is wrong about someone, if it has not lately.
func (n *Network) complain(level zapcore.Level, about, what, msg string, fields ...zap.Field) {
	unsaid, ok := n.refusals.due(complaint{about, what}, time.Now())
	if !ok {
		return
	}
	if unsaid > 0 {
		fields = append(fields, zap.Int("not_logged", unsaid))
	}
	n.o.Logger.Log(level, msg, fields...)
}

// complainOfRefusal logs a refusal, on either end. That raft is not running yet is part of
// every start.
func (n *Network) complainOfRefusal(msg, addr string, e *RefusedError) {
	level := zap.WarnLevel
	if e.Reason == peerv1.Refusal_REFUSAL_RAFT_NOT_READY {
		level = zap.DebugLevel
	}
	about := e.Remote.NodeID
	if about == "" {
		about = addr
	}
	n.complain(level, about, e.Reason.String(), msg,
		zap.String("address", addr), zap.String("remote_node_id", e.Remote.NodeID), zap.String("remote_cluster_id", e.Remote.ClusterID), zap.String("reason", e.Text))
}
