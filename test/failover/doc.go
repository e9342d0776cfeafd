// Package failover measures for how long a cluster of three real nodes takes no writes when
// its leader is killed, and when leadership is handed over on purpose, with default settings
// and clients that follow the leader.
//
// It owns that client (the whole retry recipe of contract 2.4: the same bytes until there is
// an answer) and the bounds that are promised. On the way it holds every answer against what
// is stored: no write is refused definitely that landed, and none is lost.
//
// It may import anything; nothing imports it.
package failover
