package powerloss

import (
	"fmt"
	"strings"
)

// name applies the calls that change names. Arguments differ between a call and its *at
// form; dirArg is -1 where there is no directory descriptor.
func (r *replayer) name(c *Call) error {
	dirArg, nameArg := -1, 0
	if strings.Contains(c.Name, "at") {
		dirArg, nameArg = 0, 1
	}
	from, err := path(c, dirArg, nameArg)
	if err != nil {
		return err
	}
	switch c.Name {
	case "mkdirat", "mkdir":
		dir, name, inside, err := r.place(from)
		if err != nil || !inside {
			return err
		}
		r.rename(c, "mkdir "+from, nameChange{dir: dir, name: name, to: r.disk.newInode(true)})
		return nil
	case "unlinkat", "unlink", "rmdir":
		dir, name, inside, err := r.place(from)
		if err != nil || !inside {
			return err
		}
		n := dir.entries[name]
		if n == nil {
			return fmt.Errorf("%s: removed, and the model has nothing there", from)
		}
		r.rename(c, "remove "+from, nameChange{dir: dir, name: name})
		r.release(n)
		return nil
	}
	toDir, toName := -1, 1
	if dirArg >= 0 {
		toDir, toName = 2, 3
	}
	to, err := path(c, toDir, toName)
	if err != nil {
		return err
	}
	return r.move(c, from, to)
}

// move applies rename and link, which both make a second name stand for an inode.
func (r *replayer) move(c *Call, from, to string) error {
	dir, name, inside, err := r.place(from)
	if err != nil {
		return err
	}
	toDir, toName, toInside, err := r.place(to)
	if err != nil || (!inside && !toInside) {
		return err
	}
	if inside != toInside {
		return fmt.Errorf("%s to %s crosses the recorded directory's border", from, to)
	}
	n := dir.entries[name]
	if n == nil {
		return fmt.Errorf("%s: the model has nothing there", from)
	}
	if strings.HasPrefix(c.Name, "link") {
		r.rename(c, "link "+from+" to "+to, nameChange{dir: toDir, name: toName, to: n})
		return nil
	}
	if len(c.Args) == 5 && c.Args[4] != "0" && c.Args[4] != "RENAME_NOREPLACE" {
		return fmt.Errorf("the model does not know rename with %s", c.Args[4])
	}
	old := toDir.entries[toName]
	if old == n {
		return nil // two names of one file: rename does nothing
	}
	r.rename(c, "rename "+from+" to "+to,
		nameChange{dir: dir, name: name}, nameChange{dir: toDir, name: toName, to: n})
	if old != nil {
		r.release(old)
	}
	return nil
}

// release marks an inode that has lost its last name.
func (r *replayer) release(n *inode) {
	for _, d := range r.disk.inodes {
		for _, e := range d.entries {
			if e == n {
				return
			}
		}
	}
	n.gone = true
}

// duplicate applies the calls that give an open file a second descriptor.
func (r *replayer) duplicate(c *Call) error {
	if c.Name == "fcntl" && !strings.HasPrefix(c.Args[1], "F_DUPFD") {
		return nil
	}
	f, err := r.file(c, 0)
	if err != nil {
		return err
	}
	delete(r.fds, int(c.Ret))
	if f != nil {
		r.fds[int(c.Ret)] = f
	}
	return nil
}

// mmap accepts what does not write to a file of the directory.
func (r *replayer) mmap(c *Call) error {
	if strings.HasPrefix(c.Args[4], "-1") || !strings.Contains(c.Args[2], "PROT_WRITE") || !strings.Contains(c.Args[3], "MAP_SHARED") {
		return nil
	}
	f, err := r.file(c, 4)
	if f != nil && err == nil {
		err = fmt.Errorf("a file of the directory is written through memory, which strace does not see")
	}
	return err
}

// unsupported refuses a call on a file of the directory that the model cannot follow.
func (r *replayer) unsupported(c *Call) error {
	for i := range c.Args {
		if fd, _, err := c.FD(i); err == nil && r.fds[fd] != nil {
			return fmt.Errorf("the model does not know %s", c.Name)
		}
	}
	return nil
}
