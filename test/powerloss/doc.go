// Package powerloss rebuilds a data directory as a disk could have left it when the power
// went, and checks that everything acknowledged by then is there.
//
// kill -9 proves nothing about fsync, because the page cache survives it. So a real run is
// recorded with strace, its file operations are replayed into a model of a disk (Disk), and
// for many moments of the run the directory is rebuilt with subsets of what had not been
// flushed by then (Explore). Each rebuilt directory must open and hold what was acknowledged.
//
// It owns the recorder, the model and the explorer. The programs that are recorded, and what
// they promise, are in the tests: the test binary runs itself again under strace.
//
// What the model assumes of a disk, and nothing more:
//   - Data of a file is durable once an fsync or fdatasync of that file, begun after the
//     write had returned, has succeeded. Until then each 4 KiB page of it holds any of the
//     contents that the page has had since, whatever the other pages hold.
//   - The size of a file is apart from its pages: a file may have grown without its data,
//     which then reads as zeros. A truncation is kept whole or not at all, but for the part
//     of a page that it cuts off, which is zeroed apart.
//   - A name (create, rename, unlink, link, mkdir) is durable once its directory has been
//     fsynced; fsyncing the file does not count. A rename is kept whole or not at all. Any of
//     the changes that are pending may be kept, in whatever order they were made.
//
// It may import anything; nothing imports it. It needs strace on the PATH, and says so.
package powerloss
