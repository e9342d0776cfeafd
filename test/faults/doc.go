// Package faults gives a real node a bad day: torn and damaged files, full and failing
// disks, signals, a second process, and bytes that are no request. It checks the exit code,
// the message, and that nothing acknowledged is lost.
//
// Faults are made from outside the process: files are changed while it is down, strace
// makes its system calls fail, a tmpfs or a file size limit takes its space.
//
// It may import anything; nothing imports it. It needs strace on the PATH, and says so; with
// root it fills a real (small) file system, without root it limits the size of files.
package faults
