package stable

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

func mustOpen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(Options{Path: path, OnFatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func wantValue(t testing.TB, s *Store, key, want string) {
	t.Helper()
	got, err := s.Get([]byte(key))
	if want == "" {
		// raft compares the text, and takes any candidate that is not nil for one.
		if err != raftboltdb.ErrKeyNotFound || err.Error() != "not found" || got != nil {
			t.Fatalf("get %s: want not found, got %q, %v", key, got, err)
		}
		return
	}
	if err != nil || string(got) != want {
		t.Fatalf("get %s: want %q, got %q, %v", key, want, got, err)
	}
}

func wantNumber(t testing.TB, s *Store, key string, want uint64) {
	t.Helper()
	got, err := s.GetUint64([]byte(key))
	if want == 0 && err == raftboltdb.ErrKeyNotFound {
		return
	}
	if err != nil || got != want || want == 0 {
		t.Fatalf("get %s: want %d, got %d, %v", key, want, got, err)
	}
}

func TestSetAndGet(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	wantValue(t, s, "a", "")
	wantNumber(t, s, "CurrentTerm", 0)
	for _, set := range []func() error{
		func() error { return s.Set([]byte("a"), []byte("one")) },
		func() error { return s.SetUint64([]byte("CurrentTerm"), 7) },
		func() error { return s.Set([]byte("b"), []byte("gone")) },
		func() error { return s.Set([]byte("b"), nil) },
		func() error { return s.SetUint64([]byte("CurrentTerm"), 1<<63) },
	} {
		if err := set(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		wantValue(t, s, "a", "one")
		wantValue(t, s, "b", "")
		wantValue(t, s, "c", "")
		wantNumber(t, s, "CurrentTerm", 1<<63)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, path)
	}
	if err := s.Set([]byte("a"), []byte("short")); err != nil {
		t.Fatal(err)
	}
	if n, err := s.GetUint64([]byte("a")); err == nil || n != 0 || errors.Is(err, ErrPoisoned) {
		t.Fatalf("want an error about 5 bytes, got %d, %v", n, err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Set([]byte("a"), nil); err != ErrClosed {
		t.Fatalf("want ErrClosed, got %v", err)
	}
	if _, err := s.Get([]byte("a")); err != ErrClosed {
		t.Fatalf("want ErrClosed, got %v", err)
	}
}

// raftVote does what raft.persistVote does.
func raftVote(s *Store, term uint64, candidate string) error {
	if err := s.SetUint64([]byte(keyLastVoteTerm), term); err != nil {
		return err
	}
	return s.Set([]byte(keyLastVoteCand), []byte(candidate))
}

// grants says what raft.requestVote makes of a request in a term, given the stored vote:
// "yes" and "no" without a look at the candidate's log, else "check".
func grants(t testing.TB, s *Store, term uint64, candidate string) string {
	t.Helper()
	lastTerm, err := s.GetUint64([]byte(keyLastVoteTerm))
	if err != nil && err.Error() != "not found" {
		t.Fatal(err)
	}
	lastCand, err := s.Get([]byte(keyLastVoteCand))
	if err != nil && err.Error() != "not found" {
		t.Fatal(err)
	}
	if lastTerm == term && lastCand != nil {
		if bytes.Equal(lastCand, []byte(candidate)) {
			return "yes"
		}
		return "no"
	}
	return "check"
}

// crashing lets n writes through and fails the rest, as a process that died there.
type crashing struct {
	conf
	n int
}

var errCrash = errors.New("crash")

func (c *crashing) Set(key, val []byte) error {
	if c.n == 0 {
		return errCrash
	}
	c.n--
	return c.conf.Set(key, val)
}

// hashicorp/raft issue 661: a node votes for a in term 5; in term 6 a asks again with a log
// that is too short, b asks and is given the vote. A crash at any of the writes must not
// leave a vote for a in term 6, which a would be granted on asking once more, nor forget the
// vote of term 5 while that may be asked for.
func TestIssue661CrashBetweenTheTwoWritesOfAVote(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		path := filepath.Join(t.TempDir(), "stable.db")
		s := mustOpen(t, path)
		if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 5), raftVote(s, 5, "a"), s.SetUint64([]byte("CurrentTerm"), 6)); err != nil {
			t.Fatal(err)
		}
		s.o.OnFatal = nil
		s.db = &crashing{s.db, n}
		err := raftVote(s, 6, "b")
		if err := s.db.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, path)
		want := map[bool]string{true: "check", false: "yes"}[err != nil]
		if got := grants(t, s, 6, "b"); got != want {
			t.Fatalf("%d writes: b in term 6: want %s, got %s", n, want, got)
		}
		want = map[bool]string{true: "check", false: "no"}[err != nil]
		if got := grants(t, s, 6, "a"); got != want {
			t.Fatalf("%d writes: a in term 6: want %s, got %s", n, want, got)
		}
		wantNumber(t, s, "CurrentTerm", 6) // so that term 5 is refused before its vote is looked at
		if err == nil {
			if n < 3 {
				t.Fatalf("want three writes, got %d", n)
			}
			return
		}
		if !errors.Is(err, errCrash) {
			t.Fatal(err)
		}
	}
}

// raft writes the current term at every start, also the one in which it voted.
func TestWritingTheCurrentTermKeepsTheVote(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 5), raftVote(s, 5, "a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path)
	if err := s.SetUint64([]byte("CurrentTerm"), 5); err != nil {
		t.Fatal(err)
	}
	if a, b := grants(t, s, 5, "a"), grants(t, s, 5, "b"); a != "yes" || b != "no" {
		t.Fatalf("want the vote of term 5 to stay with a, got a %s, b %s", a, b)
	}
	// Nor does writing the same vote again go through a moment without one.
	s.db = &crashing{s.db, 1}
	s.o.OnFatal = nil
	if err := raftVote(s, 5, "a"); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path)
	if a, b := grants(t, s, 5, "a"), grants(t, s, 5, "b"); a != "yes" || b != "no" {
		t.Fatalf("want the vote of term 5 to stay with a, got a %s, b %s", a, b)
	}
}

func TestFailurePoisonsTheStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	var fatal []error
	var s *Store
	s, err := Open(Options{Path: path, OnFatal: func(err error) {
		fatal = append(fatal, err)
		_ = s.Close() // the owner may
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetUint64([]byte("CurrentTerm"), 5); err != nil {
		t.Fatal(err)
	}
	s.db = &crashing{s.db, 0}
	err = s.SetUint64([]byte("CurrentTerm"), 6)
	if !errors.Is(err, errCrash) || !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "CurrentTerm") {
		t.Fatalf("want the failure with file and key, got %v", err)
	}
	for range 2 {
		_, err1 := s.GetUint64([]byte("CurrentTerm"))
		for _, err := range []error{err1, s.Set([]byte("x"), nil)} {
			if !errors.Is(err, errCrash) || !errors.Is(err, ErrPoisoned) {
				t.Fatalf("want the first failure again, got %v", err)
			}
		}
	}
	if len(fatal) != 1 || fatal[0].Error() != err.Error() {
		t.Fatalf("want one call of OnFatal with %v, got %v", err, fatal)
	}
	wantNumber(t, mustOpen(t, path), "CurrentTerm", 5)
}

// sample makes a store with a vote and returns its file.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 5), raftVote(s, 5, "a"), s.Set([]byte("cluster"), []byte("0123456789abcdef"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A flipped byte anywhere in the file is found when the store is opened, or does no harm:
// never is a value other than the one written, or none, taken for the stored one.
func TestFlipOfEveryByteIsFoundOrHarmless(t *testing.T) {
	t.Parallel()
	good := sample(t)
	dir := t.TempDir()
	found, named := 0, 0
	for i, c := range good {
		if c == 0 && i%256 != 0 {
			continue // mostly the free rest of a page
		}
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Path: path})
		if err != nil {
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
				t.Fatalf("byte %d: want damage naming the file, got %v", i, err)
			}
			found++
			if strings.Contains(err.Error(), "key \"") {
				named++
			}
		} else {
			wantNumber(t, s, "CurrentTerm", 5)
			wantNumber(t, s, keyLastVoteTerm, 5)
			wantValue(t, s, keyLastVoteCand, "a")
			wantValue(t, s, "cluster", "0123456789abcdef")
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if found < 200 || named < 80 {
		t.Fatalf("want most of the live bytes to be covered, found %d of which %d name the key", found, named)
	}
	t.Logf("found %d, of which %d name the key", found, named)
}

// A value that goes bad under a running store is found when it is read.
func TestFlippedValueIsFoundAtRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	fatal := 0
	s, err := Open(Options{Path: path, OnFatal: func(error) { fatal++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.SetUint64([]byte("CurrentTerm"), 5); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Set([]byte("CurrentTerm"), appendFrame(nil, []byte("other key"), []byte{0, 0, 0, 0, 0, 0, 0, 5})); err != nil {
		t.Fatal(err)
	}
	_, err = s.GetUint64([]byte("CurrentTerm"))
	want := fmt.Sprintf("%s: key %q: expected a value that its checksum fits, found another", path, "CurrentTerm")
	if !errors.Is(err, ErrDamaged) || !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), want) || fatal != 1 {
		t.Fatalf("want %q once, got %v, %d", want, err, fatal)
	}
}

// A key that was set and is gone is not a key that was never set.
func TestLostKeyIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	k := []byte(keysKey)
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 5), s.db.Set(k, appendFrame(nil, k, appendKeys(nil, []string{"CurrentTerm", "LastVoteTerm"}))), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Path: path})
	want := fmt.Sprintf("%s: key %q: expected a value, found none", path, "LastVoteTerm")
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), want) {
		t.Fatalf("want %q, got %v", want, err)
	}
	// Under a running store as well.
	s = mustOpen(t, filepath.Join(t.TempDir(), "stable.db"))
	s.keys, s.o.OnFatal = append(s.keys, "LastVoteTerm"), nil
	if _, err := s.Get([]byte("LastVoteTerm")); !errors.Is(err, ErrDamaged) || !errors.Is(err, ErrPoisoned) {
		t.Fatalf("want damage, got %v", err)
	}
}

// However short the file becomes, it is refused.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	good := sample(t)
	dir := t.TempDir()
	for _, n := range []int{0, 1, 16, 80, 4095, 4096, 4200, 8192, 12288, 16384, 20480} {
		path := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Options{Path: path}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Fatalf("%d of %d bytes: want damage, got %v", n, len(good), err)
		}
	}
}

// What a crash during creation leaves beside the file is of no consequence.
func TestCrashDuringCreation(t *testing.T) {
	t.Parallel()
	good := sample(t)
	for _, n := range []int{0, 1, 4096, 5000, len(good)} {
		path := filepath.Join(t.TempDir(), "stable.db")
		if err := os.WriteFile(path+".new", good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, path)
		wantNumber(t, s, "CurrentTerm", 0)
		if err := s.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

const holdEnv = "TIDEMARK_STABLE_TEST_HOLD"

// A second process on the same directory is told so.
func TestSecondProcessIsRefused(t *testing.T) {
	if path := os.Getenv(holdEnv); path != "" {
		_, err := Open(Options{Path: path, LockTimeout: 50 * time.Millisecond})
		fmt.Println(err)
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	try := func() string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSecondProcessIsRefused$")
		cmd.Env = append(os.Environ(), holdEnv+"="+path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return line
	}
	want := fmt.Sprintf("the data directory is in use by another process: expected to lock %s within 50ms; stop the other process or use another data directory", path)
	if got := try(); got != want {
		t.Fatalf("want %q, got %q", want, got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := try(); got != "<nil>" {
		t.Fatalf("want it to open once released, got %q", got)
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add(appendKeys(nil, []string{"CurrentTerm", "", "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if keys, err := parseKeys(b); err == nil && !bytes.Equal(appendKeys(nil, keys), b) {
			t.Fatalf("%x became %q", b, keys)
		}
	})
}

// However many values there are and however long, what bbolt writes is what we read.
func TestPagesOfALargerStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "stable.db")
	s := mustOpen(t, path)
	for i := range 60 {
		if err := s.Set([]byte(fmt.Sprintf("key-%03d", i)), bytes.Repeat([]byte{byte(i + 1)}, 40+i*i*3)); err != nil {
			t.Fatal(err)
		}
		if i%20 != 0 {
			continue
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, path)
	}
	for i := range 60 {
		wantValue(t, s, fmt.Sprintf("key-%03d", i), string(bytes.Repeat([]byte{byte(i + 1)}, 40+i*i*3)))
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(sample(f)[:6*4096], uint16(0), byte(0))
	f.Add(make([]byte, 8192), uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, flip byte) {
		b = bytes.Clone(b)
		if int(at) < len(b) {
			b[at] ^= flip
		}
		// It ends, and does not panic.
		if found, err := parseFile(b); err == nil && found == nil {
			t.Fatal("want values or an error")
		}
	})
}
