// Package operations runs the procedures of docs/operations.md as they are written there.
//
// It owns taking the commands out of the page (document.go), and a world to run them in
// (world.go): a network of its own, so that the page's addresses are free, processes that end
// with the test, and for each machine of the page its own /etc and /var/lib. What a machine has
// and the world has not is in commands of a few lines there: systemctl starts the node as the unit
// does, apt-get exchanges its binary.
//
// It needs root, as other suites do, ip and unshare, and for the first cluster Prometheus.
//
// Invariant: every block of commands in the page is run, and none is changed but for the name and
// the address of the machine that it is given on.
//
// It may import anything.
package operations
