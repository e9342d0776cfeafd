package powerloss

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// inode is a file or a directory of the model. What it holds is in the operations on it,
// not here: see dataOp and nameOp.
type inode struct {
	id  int
	dir bool
	// entries and gone are as the process sees them at the point that replay has reached.
	entries map[string]*inode
	gone    bool // unlinked

	ops []dataOp // files: in the order in which they ended
	// last is the content after all ops.
	last content
}

// dataOp changes the content of one file.
type dataOp struct {
	start, end int
	// flushed is the moment from which the change is durable. It never is earlier than
	// that of an earlier operation on the same file.
	flushed int
	// pages that the operation changed, as they were after it, and the size after it.
	pages []pageVersion
	size  int64
}

// nameOp changes names, all of them or none.
type nameOp struct {
	start, end, flushed int
	what                string
	changes             []nameChange
}

// nameChange makes name in dir stand for to, or for nothing.
type nameChange struct {
	dir     *inode
	name    string
	to      *inode
	flushed int
}

// Line is one line that the process wrote to its standard output.
type Line struct {
	At   int // the moment at which the write began
	Text string
}

// never is the moment of what has not been flushed.
const never = int(^uint(0) >> 1)

// Disk is what a recorded run did to one directory.
type Disk struct {
	root   *inode
	inodes []*inode
	names  []nameOp
	// Lines is the standard output of the run.
	Lines []Line
	// moments at which a crash may leave another state than before.
	moments []int
}

// openFile is an open file description.
type openFile struct {
	node   *inode
	off    int64
	append bool
	end    int // of the call that opened it
}

// replayer applies calls to a Disk.
type replayer struct {
	disk    *Disk
	rootDir string
	fds     map[int]*openFile
	stdout  []byte
}

// Replay builds the model from the calls of a run that found root empty.
func Replay(calls []Call, root string) (*Disk, error) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	d := &Disk{}
	d.root = d.newInode(true)
	r := &replayer{disk: d, rootDir: root, fds: map[int]*openFile{}}
	for i := range calls {
		if calls[i].Failed {
			continue
		}
		if err := r.apply(&calls[i]); err != nil {
			return nil, fmt.Errorf("replay %s at moment %d: %w", calls[i].Name, calls[i].Start, err)
		}
	}
	if len(r.stdout) != 0 {
		return nil, fmt.Errorf("replay: standard output ends in half a line %.80q", r.stdout)
	}
	slices.SortStableFunc(d.Lines, func(a, b Line) int { return a.At - b.At })
	slices.Sort(d.moments)
	d.moments = slices.Compact(d.moments)
	return d, nil
}

func (d *Disk) newInode(dir bool) *inode {
	n := &inode{id: len(d.inodes), dir: dir}
	if dir {
		n.entries = map[string]*inode{}
	}
	d.inodes = append(d.inodes, n)
	return n
}

// touch notes that a crash just before and just after the call leave different states.
func (d *Disk) touch(c *Call) { d.moments = append(d.moments, c.Start+1, c.End+1) }

func (r *replayer) apply(c *Call) error {
	switch c.Name {
	case "openat":
		return r.openat(c)
	case "close":
		fd, _, err := c.FD(0)
		// The kernel gives the number away again while this call still runs.
		if f := r.fds[fd]; f != nil && f.end < c.Start {
			delete(r.fds, fd)
		}
		return err
	case "write", "writev", "pwrite64", "pwritev", "pwritev2":
		return r.write(c)
	case "lseek":
		f, err := r.file(c, 0)
		if f != nil {
			f.off = c.Ret
		}
		return err
	case "ftruncate":
		f, err := r.file(c, 0)
		if f == nil || err != nil {
			return err
		}
		size, err := c.Int(1)
		if err == nil {
			r.truncate(c, f.node, size)
		}
		return err
	case "truncate":
		return r.truncatePath(c)
	case "fallocate":
		return r.fallocate(c)
	case "fsync", "fdatasync":
		f, err := r.file(c, 0)
		if f != nil {
			r.flush(c, f.node)
		}
		return err
	case "mkdirat", "mkdir", "renameat", "renameat2", "rename", "unlinkat", "unlink", "rmdir", "linkat", "link":
		return r.name(c)
	case "dup", "dup3", "dup2", "fcntl":
		return r.duplicate(c)
	case "sync_file_range", "msync":
		return nil // promise nothing
	case "mmap":
		return r.mmap(c)
	case "copy_file_range", "sendfile", "splice", "symlinkat", "symlink", "io_uring_setup", "clone", "fork", "vfork":
		return r.unsupported(c)
	}
	return fmt.Errorf("the model does not know this call")
}

// file is the open file in argument i if it is below the root.
func (r *replayer) file(c *Call, i int) (*openFile, error) {
	fd, path, err := c.FD(i)
	if err != nil {
		return nil, err
	}
	f := r.fds[fd]
	if f == nil {
		if n, inside := r.lookup(path); inside && n != nil {
			return nil, fmt.Errorf("descriptor %d is %s, and the model has no file there", fd, path)
		}
		return nil, nil
	}
	if f.node.gone {
		return f, nil
	}
	// strace reads the path from the kernel, so this compares the model with the machine.
	if n, _ := r.lookup(path); n != f.node {
		return nil, fmt.Errorf("descriptor %d is %s, and the model has another file there", fd, path)
	}
	return f, nil
}

// below is the path relative to the root, and whether it is the root or below it.
func (r *replayer) below(path string) (string, bool) {
	if path == r.rootDir {
		return ".", true
	}
	return strings.CutPrefix(path, r.rootDir+"/")
}

// lookup finds what a path stands for, nil if nothing or not below the root.
func (r *replayer) lookup(path string) (n *inode, inside bool) {
	rel, ok := r.below(filepath.Clean(path))
	if !ok {
		return nil, false
	}
	n = r.disk.root
	if rel == "." {
		return n, true
	}
	for part := range strings.SplitSeq(rel, "/") {
		if n = n.entries[part]; n == nil {
			return nil, true
		}
	}
	return n, true
}

// path joins a directory descriptor and a path argument.
func path(c *Call, dir, name int) (string, error) {
	p, err := c.Bytes(name)
	if err != nil || filepath.IsAbs(string(p)) || dir < 0 {
		return string(p), err
	}
	_, base, err := c.FD(dir)
	return filepath.Join(base, string(p)), err
}

// place is the directory and the name in it that a path stands for.
func (r *replayer) place(p string) (dir *inode, name string, inside bool, err error) {
	p = filepath.Clean(p)
	if _, ok := r.below(p); !ok {
		return nil, "", false, nil
	}
	dir, ok := r.lookup(filepath.Dir(p))
	if !ok || dir == nil {
		return nil, "", false, fmt.Errorf("the directory of %s does not exist in the model", p)
	}
	return dir, filepath.Base(p), true, nil
}

func (r *replayer) openat(c *Call) error {
	p, err := path(c, 0, 1)
	if err != nil {
		return err
	}
	fd := int(c.Ret)
	delete(r.fds, fd)
	n, inside := r.lookup(p)
	if !inside {
		return nil
	}
	flags := "|" + c.Args[2] + "|"
	has := func(flag string) bool { return strings.Contains(flags, "|"+flag+"|") }
	if has("O_TMPFILE") || has("O_DIRECT") || has("O_SYNC") || has("O_DSYNC") {
		return fmt.Errorf("%s: the model does not know %s", p, c.Args[2])
	}
	if n == nil {
		if !has("O_CREAT") {
			return fmt.Errorf("%s: opened, and the model has nothing there", p)
		}
		dir, name, _, err := r.place(p)
		if err != nil {
			return err
		}
		n = r.disk.newInode(false)
		r.rename(c, "create "+p, nameChange{dir: dir, name: name, to: n})
	}
	if has("O_TRUNC") && n.last.size > 0 {
		r.truncate(c, n, 0)
	}
	r.fds[fd] = &openFile{node: n, append: has("O_APPEND"), end: c.End}
	return nil
}

func (r *replayer) write(c *Call) error {
	fd, _, err := c.FD(0)
	if err != nil {
		return err
	}
	f, err := r.file(c, 0)
	if err != nil || (f == nil && fd != 1) {
		return err
	}
	var data []byte
	if strings.Contains(c.Name, "writev") {
		data, err = c.Vector(1)
	} else {
		data, err = c.Bytes(1)
	}
	if err != nil {
		return err
	}
	if int64(len(data)) < c.Ret {
		return fmt.Errorf("%d bytes written, %d recorded", c.Ret, len(data))
	}
	data = data[:c.Ret]
	if f == nil {
		return r.print(c, data)
	}
	off := f.off
	switch {
	case strings.HasPrefix(c.Name, "pwrite"):
		// On Linux O_APPEND wins over the offset; nothing here does that.
		if off, err = c.Int(3); err != nil || f.append {
			return fmt.Errorf("pwrite with O_APPEND or a bad offset: %w", err)
		}
	case f.append:
		off = f.node.last.size
		f.off = off + c.Ret
	default:
		f.off = off + c.Ret
	}
	r.change(c, f.node, f.node.last.write(off, data))
	return nil
}

// print takes what the process wrote to its standard output apart into lines.
func (r *replayer) print(c *Call, data []byte) error {
	if len(r.stdout) != 0 {
		return fmt.Errorf("a line was written in two pieces, so it has no moment")
	}
	for line := range strings.Lines(string(data)) {
		text, whole := strings.CutSuffix(line, "\n")
		if !whole {
			r.stdout = []byte(line)
			break
		}
		r.disk.Lines = append(r.disk.Lines, Line{At: c.Start, Text: text})
	}
	r.disk.touch(c)
	return nil
}

func (r *replayer) truncate(c *Call, n *inode, size int64) {
	r.change(c, n, n.last.truncate(size))
}

// change records that the call has changed pages of a file, whose content is already the new one.
func (r *replayer) change(c *Call, n *inode, pages []pageVersion) {
	n.ops = append(n.ops, dataOp{start: c.Start, end: c.End, flushed: never, pages: pages, size: n.last.size})
	r.disk.touch(c)
}

func (r *replayer) truncatePath(c *Call) error {
	p, err := path(c, -1, 0)
	if err != nil {
		return err
	}
	n, inside := r.lookup(p)
	if !inside {
		return nil
	}
	size, err := c.Int(1)
	if err == nil && n == nil {
		err = fmt.Errorf("%s: the model has nothing there", p)
	}
	if err == nil {
		r.truncate(c, n, size)
	}
	return err
}

func (r *replayer) fallocate(c *Call) error {
	f, err := r.file(c, 0)
	if f == nil || err != nil {
		return err
	}
	off, err := c.Int(2)
	if err != nil {
		return err
	}
	length, err := c.Int(3)
	if err != nil {
		return err
	}
	switch c.Args[1] {
	case "FALLOC_FL_KEEP_SIZE":
	case "0":
		if size := off + length; size > f.node.last.size {
			r.truncate(c, f.node, size)
		}
	default:
		return fmt.Errorf("the model does not know the mode %s", c.Args[1])
	}
	return nil
}

// flush makes durable what had ended when the flush began.
func (r *replayer) flush(c *Call, n *inode) {
	r.disk.touch(c)
	for i := len(n.ops) - 1; i >= 0; i-- {
		if op := &n.ops[i]; op.end < c.Start {
			op.flushed = min(op.flushed, c.End)
		}
	}
	if !n.dir {
		return
	}
	for i := range r.disk.names {
		op := &r.disk.names[i]
		if op.end >= c.Start || op.flushed != never {
			continue
		}
		all := 0
		for j := range op.changes {
			if ch := &op.changes[j]; ch.dir == n {
				ch.flushed = min(ch.flushed, c.End)
			}
			all = max(all, op.changes[j].flushed)
		}
		op.flushed = all
	}
}

// rename applies changes of names that are kept together or not at all.
func (r *replayer) rename(c *Call, what string, changes ...nameChange) {
	for i := range changes {
		ch := &changes[i]
		ch.flushed = never
		if ch.to == nil {
			delete(ch.dir.entries, ch.name)
		} else {
			ch.dir.entries[ch.name] = ch.to
		}
	}
	r.disk.names = append(r.disk.names, nameOp{start: c.Start, end: c.End, flushed: never, what: what, changes: changes})
	r.disk.touch(c)
}
