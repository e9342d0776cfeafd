package config

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Key      string `json:"key"`
	Source   Source `json:"source"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

func (p Problem) String() string {
	return fmt.Sprintf("%s (%s): expected %s; found %s", p.Key, p.Source, p.Expected, p.Found)
}

// Problems is everything that is wrong with a configuration.
type Problems []Problem

func (p Problems) Error() string {
	var text strings.Builder
	if len(p) == 1 {
		text.WriteString("the configuration has a problem:")
	} else {
		fmt.Fprintf(&text, "the configuration has %d problems:", len(p))
	}
	for _, problem := range p {
		text.WriteString("\n  " + problem.String())
	}
	return text.String()
}

// report notes a problem with the value of one setting.
func (c *Config) report(key, expected, found string) {
	if found == "" {
		found = "nothing"
	} else {
		found = fmt.Sprintf("%q", found)
	}
	c.problems = append(c.problems, Problem{key, c.Source(key), expected, found})
}

// wrong says whether a problem with the value of key was found already.
func (c *Config) wrong(key string) bool {
	return slices.ContainsFunc(c.problems, func(p Problem) bool { return p.Key == key })
}

// derive fills in what follows from other settings.
func (c *Config) derive() {
	c.follow("advertise", &c.Advertise, "listen", c.Listen)
	// What the other nodes are told of this one is what their --peers say, too.
	for _, p := range c.Peers {
		if p.ID == c.NodeID {
			c.follow("raft-advertise", &c.RaftAdvertise, "peers", p.Address)
		}
	}
	c.follow("raft-advertise", &c.RaftAdvertise, "raft-listen", c.RaftListen)
	if c.MemoryLimitBytes == 0 {
		c.MemoryLimitBytes = automaticMemoryLimit
		if least := c.leastMemory(); least > automaticMemoryLimit {
			c.MemoryLimitBytes = least
			c.sources["memory-limit"] = Source{OriginDerived, "the cache sizes"}
		}
		return
	}
	if c.MemoryLimitBytes >= automaticMemoryLimit {
		return
	}
	// A limit below what the defaults are made for: shrink what the user did not set, in
	// proportion to what is left above baseMemory. What was set stays; Validate says if it
	// does not fit.
	shrink := func(key string, value *int64, least int64) {
		if c.Source(key).Origin != OriginDefault {
			return
		}
		share := *value * ((c.MemoryLimitBytes - baseMemory) / mib) / ((automaticMemoryLimit - baseMemory) / mib)
		*value = max(share/mib*mib, least)
		c.sources[key] = Source{OriginDerived, "memory-limit"}
	}
	shrink("max-in-flight-bytes", &c.MaxInFlightBytes, c.MaxRequestBytes)
	shrink("max-read-bytes", &c.MaxReadBytes, mib)
	shrink("head-cache-bytes", &c.HeadCacheBytes, mib)
	shrink("mark-cache-bytes", &c.MarkCacheBytes, mib)
	shrink("block-cache-bytes", &c.BlockCacheBytes, mib)
	shrink("subscription-ring-bytes", &c.SubscriptionRingBytes, mib)
	shrink("memtable-bytes", &c.MemtableBytes, 4*mib)
	// The least of the others, such as one request in flight, is more than their share of a
	// small limit: reads can do with less.
	if over := c.leastMemory() - c.MemoryLimitBytes; over > 0 && c.Source("max-read-bytes").Origin == OriginDerived {
		c.MaxReadBytes = max(c.MaxReadBytes-over, mib)
	}
}

func (c *Config) follow(key string, value *string, from, fallback string) {
	if *value == "" && !c.wrong(key) {
		*value = fallback
		c.sources[key] = Source{OriginDerived, from}
	}
}

// baseMemory is what a node needs besides the sizes that can be set: code, stacks,
// connections, decoded requests.
const baseMemory = 64 * mib

// memtables is how many memtables can exist at once before writes wait.
const memtables = 4

// leastMemory is what the configured sizes need.
func (c *Config) leastMemory() int64 {
	return baseMemory + c.HeadCacheBytes + c.MarkCacheBytes + c.BlockCacheBytes +
		memtables*c.MemtableBytes + c.MaxInFlightBytes + c.MaxReadBytes
}

// Validate checks the configuration as a whole. The error is a Problems with everything
// that is wrong, what Load found included.
func (c *Config) Validate() error {
	found := c.problems
	defer func() { c.problems = found }()

	c.validateAddresses()
	c.validatePeers()
	if c.MaxInFlightBytes < c.MaxRequestBytes && !c.wrong("max-in-flight-bytes") {
		c.report("max-in-flight-bytes",
			fmt.Sprintf("at least max-request-bytes (%s), or the largest request could never be admitted", FormatSize(c.MaxRequestBytes)),
			FormatSize(c.MaxInFlightBytes))
	}
	if least := c.leastMemory(); c.MemoryLimitBytes < least && !c.wrong("memory-limit") {
		c.report("memory-limit",
			fmt.Sprintf("at least %s (%s + head-cache-bytes %s + mark-cache-bytes %s + block-cache-bytes %s + %d x memtable-bytes %s + max-in-flight-bytes %s + max-read-bytes %s), or smaller values of those",
				FormatSize(least), FormatSize(baseMemory), FormatSize(c.HeadCacheBytes), FormatSize(c.MarkCacheBytes),
				FormatSize(c.BlockCacheBytes), memtables, FormatSize(c.MemtableBytes), FormatSize(c.MaxInFlightBytes), FormatSize(c.MaxReadBytes)),
			FormatSize(c.MemoryLimitBytes))
	}
	if c.TrailingLogBytes > c.SnapshotLogBytes && !c.wrong("trailing-log-bytes") && !c.wrong("snapshot-log-bytes") {
		c.report("trailing-log-bytes",
			fmt.Sprintf("at most snapshot-log-bytes (%s)", FormatSize(c.SnapshotLogBytes)), FormatSize(c.TrailingLogBytes))
	}
	if c.ElectionTimeout > 0 && c.HeartbeatTimeout > 0 && c.ElectionTimeout < c.HeartbeatTimeout {
		c.report("election-timeout",
			fmt.Sprintf("at least heartbeat-timeout (%v)", c.HeartbeatTimeout), c.ElectionTimeout.String())
	}
	if len(c.problems) == 0 {
		return nil
	}
	return Problems(slices.Clone(c.problems))
}

// listener is a setting that opens a port.
type listener struct {
	key, address string
	exposes      string // what whoever reaches it can do
}

func (c *Config) listeners() []listener {
	return []listener{
		{"listen", c.Listen, "read and write everything"},
		{"raft-listen", c.RaftListen, "speak as a node of the cluster"},
		{"http-listen", c.HTTPListen, "see the node's metrics"},
	}
}

func (c *Config) validateAddresses() {
	taken := map[string]string{}
	for _, l := range c.listeners() {
		if other, ok := taken[l.address]; ok && !c.wrong(l.key) && !c.wrong(other) {
			c.report(l.key, "another address than "+other, l.address)
		}
		if _, port, err := net.SplitHostPort(l.address); err == nil && port != "0" {
			taken[l.address] = l.key
		}
	}
	if !c.wrong("raft-advertise") && !c.wrong("raft-listen") && unspecified(c.RaftAdvertise) {
		c.report("raft-advertise", "an address that other nodes can reach this one at, because raft-listen names no particular one", c.RaftAdvertise)
	}
}

func (c *Config) validatePeers() {
	if len(c.Peers) == 0 || c.wrong("peers") {
		return
	}
	if len(c.Peers) > maxPeers {
		c.report("peers", fmt.Sprintf("at most %d nodes: more make every write slower and nothing safer", maxPeers), fmt.Sprintf("%d nodes", len(c.Peers)))
	}
	ids, addresses := map[string]bool{}, map[string]string{}
	for _, p := range c.Peers {
		if ids[p.ID] {
			c.report("peers", "each node once", fmt.Sprintf("%s twice", p.ID))
		}
		ids[p.ID] = true
		if other, ok := addresses[p.Address]; ok {
			c.report("peers", "an address of its own for each node", fmt.Sprintf("%s for %s and %s", p.Address, other, p.ID))
		}
		addresses[p.Address] = p.ID
		if _, port, _ := net.SplitHostPort(p.Address); port == "0" || unspecified(p.Address) {
			c.report("peers", "addresses that the other nodes can be reached at", p.ID+"="+p.Address)
		}
		if p.ID == c.NodeID && p.Address != c.RaftAdvertise && !c.wrong("node-id") && !c.wrong("raft-advertise") {
			c.report("peers", fmt.Sprintf("this node: %s=%s (node-id and raft-advertise)", c.NodeID, c.RaftAdvertise), p.ID+"="+p.Address)
		}
	}
}

// maxPeers bounds the initial cluster.
const maxPeers = 9

// Warnings returns what is allowed and yet dangerous, one sentence each.
func (c *Config) Warnings() []string {
	var warnings []string
	for _, l := range c.listeners() {
		if !loopback(l.address) {
			warnings = append(warnings, fmt.Sprintf(
				"%s is %s (%s): anyone who can reach this address can %s; this version has no TLS and no authentication, so keep it on 127.0.0.1 or inside a network that you trust",
				l.key, l.address, c.Source(l.key), l.exposes))
		}
	}
	// A list without this node is of members to ask, not of the voters to be.
	if n := len(c.Peers); n%2 == 0 && slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.ID == c.NodeID }) {
		warnings = append(warnings, fmt.Sprintf("peers names %d nodes: an even number survives no more failures than %d would", n, n-1))
	}
	if len(c.Peers) > 1 && loopback(c.RaftListen) && !loopback(c.RaftAdvertise) {
		warnings = append(warnings, fmt.Sprintf(
			"raft-listen is %s (%s), where other machines cannot reach it, but raft-advertise is %s: set raft-listen, for example to 0.0.0.0:7441",
			c.RaftListen, c.Source("raft-listen"), c.RaftAdvertise))
	}
	if len(c.Peers) > 0 && loopback(c.Advertise) && !loopback(c.RaftAdvertise) {
		warnings = append(warnings, fmt.Sprintf(
			"advertise is %s (%s), where clients on other machines cannot reach this node, but raft-advertise is %s: other nodes send clients there; set advertise to the address that they reach this node at",
			c.Advertise, c.Source("advertise"), c.RaftAdvertise))
	}
	if unspecified(c.Advertise) {
		warnings = append(warnings, fmt.Sprintf(
			"advertise is %s (%s): clients on other machines cannot use it; set advertise to the address that they reach this node at",
			c.Advertise, c.Source("advertise")))
	}
	if least := c.MemtableBytes + c.MaxInFlightBytes; c.MinFreeDiskBytes < least {
		warnings = append(warnings, fmt.Sprintf(
			"min-free-disk-bytes is %s (%s): expected at least %s (memtable-bytes %s + max-in-flight-bytes %s), which may still be written when writes are refused; with less, a disk that fills up ends the node",
			FormatSize(c.MinFreeDiskBytes), c.Source("min-free-disk-bytes"), FormatSize(least), FormatSize(c.MemtableBytes), FormatSize(c.MaxInFlightBytes)))
	}
	return warnings
}

// loopback says whether only this machine can reach a listener on address. A host name
// other than localhost could be anything.
func loopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// unspecified says whether address stands for every interface, which is nowhere to
// connect to.
func unspecified(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
