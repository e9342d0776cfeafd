// Package backup takes backups of real nodes under load, from one that is alone and from a
// follower of three, restores them with the commands, and holds what comes up against what
// the nodes had acknowledged.
//
// It proves that everything that was acknowledged before a backup began is in it, the same to
// the byte; that resends are refused or confirmed as before; that positions of the old
// timeline are refused by every call that takes one; and that new writes go on from there. What a backup
// does when majorities are lost, disks fill up and receivers stall is tested beside the code.
//
// It may import anything; nothing imports it.
package backup
