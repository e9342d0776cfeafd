package cluster

import (
	"testing"

	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

func TestAClusterSurvivesItsNodes(t *testing.T) {
	c := Start(t, Options{Nodes: 3, Args: []string{"--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB"}})
	leader := c.Leader()
	leader.Kill()
	next := c.Leader(c.Others(leader)...)
	leader.Launch()
	c.Settle()
	next.Pause()
	third := c.Leader(c.Others(next)...)
	next.Resume()
	c.Settle()
	follower := c.Others(third)[0]
	follower.Stop()
	follower.Wipe()
	follower.Launch()
	c.Settle()
}
