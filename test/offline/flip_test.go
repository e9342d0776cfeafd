package offline

import (
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// More: go test ./test/offline -run 'Flipped|EveryByte' -args -flips 1000 -stride 1 -seed 7.
var (
	flagStride = flag.Int64("stride", 11, "of small files, every how-manieth byte is flipped")
	flagFlips  = flag.Int("flips", 25, "how many bytes of each kind of file are flipped")
	flagSeed   = flag.Uint64("seed", 0, "seed of which; 0 = a new one")
)

// kind says what a file of a data directory is; empty if it holds nothing that is checked.
func kind(path string) string {
	name := filepath.Base(path)
	switch {
	case strings.HasSuffix(name, ".sst"), strings.HasSuffix(name, ".blob"):
		return filepath.Ext(name)
	case strings.HasPrefix(name, "MANIFEST-"):
		return "MANIFEST"
	case name == "state", name == "raft.db":
		return name
	case strings.Contains(path, "/tail/"):
		return "segment"
	}
	return ""
}

// files lists the files of a directory by kind, in order.
func files(t *testing.T, dir string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if k := kind(path); k != "" {
				out[k] = append(out[k], path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// flipped calls fn while a byte of a file is another one.
func flipped(t *testing.T, path string, offset int64, by byte, fn func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // nothing of what was written is needed on disk
	var b [1]byte
	change := func() {
		if _, err := f.ReadAt(b[:], offset); err != nil {
			t.Fatal(err)
		}
		b[0] ^= by
		if _, err := f.WriteAt(b[:], offset); err != nil {
			t.Fatal(err)
		}
	}
	change()
	defer change()
	fn()
}

// names says whether a finding names the file, under whatever name it has, and a place in it.
func names(f inspect.Finding, path string) bool {
	a, err := os.Stat(f.File)
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b) && (f.Offset >= 0 || f.Key != "")
}

func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *flagSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) >> 10
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestEveryFlippedByteIsFound flips bytes of every kind of file that has checksums, and expects
// each to be found and named. Of the stable store only what is read has one: what else is in
// its pages may change as long as nothing of that does.
func TestEveryFlippedByteIsFound(t *testing.T) {
	rng := random(t)
	dir := full(t, true)
	sound(t, dir)
	before := raftOf(t, dir)
	all := files(t, dir)
	for _, k := range []string{".sst", ".blob", "MANIFEST", "state", "raft.db", "segment"} {
		if len(all[k]) == 0 {
			t.Errorf("expected files of kind %s, found none", k)
			continue
		}
		t.Run(k, func(t *testing.T) {
			for range *flagFlips {
				path := all[k][rng.IntN(len(all[k]))]
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if info.Size() == 0 {
					continue
				}
				offset, by := rng.Int64N(info.Size()), byte(1+rng.IntN(255))
				flipped(t, path, offset, by, func() { found(t, dir, path, offset, by, before) })
			}
		})
	}
	sound(t, dir)
}

// TestEveryByteOfSmallFiles flips the bytes of all files of a directory that holds little, one
// after the other.
func TestEveryByteOfSmallFiles(t *testing.T) {
	rng := random(t)
	dir := t.TempDir()
	s := open(t, small(dir))
	newWriter().writes(t, s, 3)
	end(t, s, true)
	sound(t, dir)
	before := raftOf(t, dir)
	all := files(t, dir)
	for _, k := range []string{".sst", ".blob", "MANIFEST", "segment"} {
		for _, path := range all[k] {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			for offset := rng.Int64N(*flagStride); offset < info.Size(); offset += *flagStride {
				flipped(t, path, offset, 0x10, func() { found(t, dir, path, offset, 0x10, before) })
			}
		}
	}
	sound(t, dir)
}

// TestStableStore flips what a random byte seldom hits: all of both meta pages that has a
// checksum, and every byte of a page that is not zero.
func TestStableStore(t *testing.T) {
	rng := random(t)
	dir := t.TempDir()
	end(t, open(t, small(dir)), true)
	sound(t, dir)
	before := raftOf(t, dir)
	path := filepath.Join(dir, "raft.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pageSize := int64(os.Getpagesize())
	next := rng.Int64N(*flagStride)
	for i := range b {
		offset := int64(i)
		meta := offset < 2*pageSize && offset%pageSize >= 16 && offset%pageSize < 80
		if b[i] == 0 && !meta {
			continue
		}
		if next++; next%*flagStride > 0 && (!meta || offset%8 > 0) {
			continue
		}
		flipped(t, path, offset, 0x10, func() {
			found(t, dir, path, offset, 0x10, before)
			if findings, _ := verify(t, dir); meta && len(findings) == 0 {
				t.Errorf("byte %d of a meta page flipped: found nothing", offset)
			}
		})
	}
	// A value that its checksum does not fit, in a file that is sound otherwise.
	used := 0
	for at := int64(0); ; {
		i := strings.Index(string(b[at:]), "CurrentTerm")
		if i < 0 {
			break
		}
		at += int64(i) + int64(len("CurrentTerm"))
		// The checksum and the number follow the key.
		flipped(t, path, at+11, 1, func() {
			findings, _ := verify(t, dir)
			if len(findings) > 0 && findings[0].Key == `"CurrentTerm"` && findings[0].Offset == at {
				used++
			}
		})
	}
	if used != 1 {
		t.Errorf("found the flipped term at %d places where it is stored, expected 1", used)
	}
}

func found(t *testing.T, dir, path string, offset int64, by byte, before string) {
	t.Helper()
	var findings []inspect.Finding
	if _, err := inspect.Verify(t.Context(), dir, inspect.VerifyOptions{Found: func(f inspect.Finding) { findings = append(findings, f) }}); err != nil {
		t.Errorf("byte %d of %s flipped by %02x: %v", offset, path, by, err)
		return
	}
	if slices.ContainsFunc(findings, func(f inspect.Finding) bool { return f.Damage && names(f, path) }) {
		return
	}
	if kind(path) == "raft.db" && len(findings) == 0 && raftOf(t, dir) == before {
		return // in a part of a page that nothing is in
	}
	t.Errorf("byte %d of %s flipped by %02x: found %v, expected damage there", offset, path, by, findings)
}

// raftOf is what is read of raft's state.
func raftOf(t *testing.T, dir string) string {
	t.Helper()
	d, err := inspect.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Raft()
	if err != nil {
		return err.Error()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	r.Identity, r.Snapshots = nil, nil
	return fmt.Sprintf("%+v", r)
}
