// Package deploy runs what is in the directory deploy against the real binary: every command
// line and configuration in it is one that "tidemark serve" takes, HAProxy with our
// configuration follows the leader of a real cluster, and systemd takes our unit.
//
// It owns nothing that is deployed, and knows it only as its readers would. What is rendered
// or checked against a schema without the binary is in tools/deploy, which has dependencies
// that the module should not.
//
// It needs haproxy and systemd-analyze (the package systemd). It may import anything; nothing
// imports it. yaml/v3 reads the manifests.
package deploy
