package replication

import (
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// diskCheckEvery is how often free space is looked at. A disk takes well under the default
// reserve in that time.
const diskCheckEvery = 250 * time.Millisecond

// diskWatch knows whether the data directory's disk is below the reserve.
type diskWatch struct {
	free    atomic.Int64 // bytes, as of the last look
	reserve int64
}

// watchDisk looks at once, and then until stopped.
func watchDisk(o Options, stopped <-chan struct{}, wg *sync.WaitGroup) (*diskWatch, error) {
	d := &diskWatch{reserve: o.MinFreeDiskBytes}
	free, err := o.FreeDisk(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("free space of %s: %w", o.Dir, err)
	}
	d.free.Store(free)
	wg.Add(1)
	go func() {
		defer wg.Done()
		ticker := time.NewTicker(diskCheckEvery)
		defer ticker.Stop()
		was := d.low() >= 0
		for {
			select {
			case <-stopped:
				return
			case <-ticker.C:
			}
			free, err := o.FreeDisk(o.Dir)
			if err != nil {
				o.Logger.Warn("free space cannot be read", zap.String("dir", o.Dir), zap.Error(err))
				continue
			}
			d.free.Store(free)
			if is := d.low() >= 0; is != was {
				was = is
				if is {
					o.Logger.Error("disk space is below the reserve: writes are refused (2018)", zap.Int64("free_bytes", free), zap.Int64("min_free_disk_bytes", d.reserve))
				} else {
					o.Logger.Info("disk space is above the reserve again: writes are accepted", zap.Int64("free_bytes", free))
				}
			}
		}
	}()
	return d, nil
}

// low returns the free bytes if they are below the reserve, else -1.
func (d *diskWatch) low() int64 {
	if free := d.free.Load(); d.reserve > 0 && free < d.reserve {
		return free
	}
	return -1
}

func freeDisk(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// diskRoom is how many bytes may be written before the reserve is touched; negative = there is
// none.
func (s *Shard) diskRoom() int64 {
	if s.disk.reserve <= 0 {
		return -1
	}
	return max(0, s.disk.free.Load()-s.disk.reserve)
}

// fileID is one file, whatever its names.
type fileID struct{ device, inode uint64 }

func idOf(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}
