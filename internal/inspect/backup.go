package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tidemark-db/tidemark/internal/archive"
)

// BackupOptions say how to verify a backup.
type BackupOptions struct {
	VerifyOptions
	// Name is what findings call the backup.
	Name string
	// Unpack is the directory in which the backup is unpacked for a look at what is in it, in a
	// directory of its own that is removed again. It needs room for the files. Empty = only the
	// backup's own checksums are compared, which needs none.
	Unpack string
}

// ErrNotBackup is returned for what is no backup, or one of another format.
var ErrNotBackup = errors.New("no backup")

// VerifyBackup checks every byte of a backup against its checksums, and, if all are right, the
// history that is in it like that of a data directory.
func VerifyBackup(ctx context.Context, r io.Reader, o BackupOptions) (report Report, err error) {
	b := &backup{o: o, v: &verifier{ctx: ctx, report: &report, checked: map[fileID]int{}}}
	// What is found in an unpacked file is in the backup.
	b.v.o = o.VerifyOptions
	b.v.o.Found = func(f Finding) {
		f.File = o.Name + strings.TrimPrefix(f.File, b.dir)
		o.Found(f)
	}
	defer func() {
		if b.dir != "" {
			err = errors.Join(err, os.RemoveAll(b.dir))
		}
	}()
	content, err := b.read(r)
	if err != nil || content.Manifest == nil || report.Damage > 0 || o.Unpack == "" {
		return report, err
	}
	return report, b.content(content.Manifest)
}

// backup is one that is being verified.
type backup struct {
	o   BackupOptions
	v   *verifier
	dir string // where it is unpacked; empty = nowhere
}

// read compares the checksums, and unpacks the backup if that is wanted.
func (b *backup) read(r io.Reader) (*archive.Content, error) {
	if err := b.v.doing("%s", b.o.Name); err != nil {
		return nil, err
	}
	var create func(archive.File) (io.WriteCloser, error)
	if b.o.Unpack != "" {
		dir, err := os.MkdirTemp(b.o.Unpack, "tidemark-verify-")
		if err != nil {
			return nil, err
		}
		b.dir = dir
		create = func(f archive.File) (io.WriteCloser, error) {
			path := filepath.Join(dir, filepath.FromSlash(f.Name))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, err
			}
			return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	before := int64(0)
	content, err := archive.Extract(interruptible{b.v.ctx, r}, create, func(done, _ int64) {
		b.v.read(int(done - before))
		before = done
	})
	switch {
	case errors.Is(err, archive.ErrNotArchive), errors.Is(err, archive.ErrFormat):
		return nil, fmt.Errorf("%w: %s: %w", ErrNotBackup, b.o.Name, err)
	case err != nil && b.dir != "":
		return nil, fmt.Errorf("unpack %s into %s, which needs room for all of it: %w", b.o.Name, b.o.Unpack, err)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", b.o.Name, err)
	}
	for _, f := range content.Findings {
		text := fmt.Sprintf("up to offset %d, in its part %s: %s", f.End-1, f.Part, f.Problem)
		if f.FileEnd > f.FileOffset {
			text = fmt.Sprintf("up to offset %d, in its part %s from offset %d to %d: %s", f.End-1, f.Part, f.FileOffset, f.FileEnd-1, f.Problem)
		}
		b.v.found(Finding{Damage: true, File: b.dir, Offset: f.Offset, Text: text})
	}
	if content.Unlisted > 0 {
		b.v.damage(b.dir, "it is damaged in %d more places", content.Unlisted)
	}
	return content, nil
}

// content checks what is in a backup that is whole.
func (b *backup) content(m *archive.Manifest) error {
	dir := filepath.Join(b.dir, filepath.FromSlash(strings.TrimSuffix(archive.Directory, "/")))
	a, sound, err := b.v.history(dir)
	if err != nil || !sound {
		return err
	}
	if a.Index != m.AppliedIndex || a.Term != m.AppliedTerm || a.Position != m.LastPosition || a.Timeline != "" && a.Timeline != m.Timeline {
		b.v.damage(b.dir, "expected what its manifest says, entry %d of term %d, position %d, timeline %s; found %d, %d, %d, %s",
			m.AppliedIndex, m.AppliedTerm, m.LastPosition, m.Timeline, a.Index, a.Term, a.Position, a.Timeline)
	}
	return nil
}

// interruptible ends a read when its context does.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

// Read reads from r.
func (i interruptible) Read(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(b)
}
