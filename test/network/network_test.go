package network

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary a node: it listens at its first address, says what it hears,
// and sends every line of its input to the address that the line begins with.
const roleEnv = "NODE_UNDER_TEST"

func TestMain(m *testing.M) {
	if listen := os.Getenv(roleEnv); listen != "" {
		fmt.Fprintln(os.Stderr, node(listen))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func node(listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	go func() { // ends with the process
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					fmt.Print("heard ", line)
					_, _ = io.WriteString(c, line)
				}
			}()
		}
	}()
	fmt.Println("listens")
	conns := map[string]net.Conn{}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		to, text, _ := strings.Cut(in.Text(), " ")
		if conns[to] == nil {
			c, err := net.DialTimeout("tcp", to, 10*time.Second)
			if err != nil {
				fmt.Println("failed", text)
				continue
			}
			conns[to] = c
			go func() { // ends with the connection
				s := bufio.NewScanner(c)
				for s.Scan() {
					fmt.Println("echo", s.Text())
				}
			}()
		}
		_, _ = fmt.Fprintln(conns[to], text)
	}
	return in.Err()
}

// speaker is a node of the test.
type speaker struct {
	in   io.Writer
	said chan string
}

func speak(t *testing.T, n Network, number int) *speaker {
	t.Helper()
	args := append(append([]string{}, n.Prefix(number)...), os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+n.Host(number)+":7441")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.Started(number, cmd.Process.Pid)
	s := &speaker{in: in, said: make(chan string, 100)}
	ended := make(chan struct{})
	go func() { // ends with the process, which the cleanup kills
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			s.said <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		_ = cmd.Wait() // killed
	})
	s.expect(t, "listens")
	return s
}

func (s *speaker) send(t *testing.T, to, text string) {
	t.Helper()
	if _, err := fmt.Fprintln(s.in, to, text); err != nil {
		t.Fatal(err)
	}
}

func (s *speaker) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.said:
		if got != want {
			t.Fatalf("a node said %q, expected %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("a node does not say %q", want)
	}
}

func (s *speaker) silent(t *testing.T) {
	t.Helper()
	select {
	case got := <-s.said:
		t.Fatalf("a node said %q, expected nothing", got)
	case <-time.After(150 * time.Millisecond):
	}
}

func TestCutsStopWhatTheyShouldAndHealBringsItBack(t *testing.T) {
	for name, network := range map[string]func(*testing.T) Network{
		"namespaces": func(t *testing.T) Network {
			n, err := newNamespaces(t, 3)
			if err != nil {
				t.Logf("no namespaces here: %v", err)
				return nil
			}
			return n
		},
		"proxies": func(t *testing.T) Network { return newProxies(t, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			n := network(t)
			if n == nil {
				return
			}
			a, b, c := speak(t, n, 1), speak(t, n, 2), speak(t, n, 3)
			exchange := func(from *speaker, to int, other *speaker, text string) {
				t.Helper()
				from.send(t, n.RaftAddress(to), text)
				other.expect(t, "heard "+text)
				from.expect(t, "echo "+text)
			}
			exchange(a, 2, b, "one")
			exchange(b, 1, a, "two")
			exchange(a, 3, c, "three")

			n.CutOneWay(t, 1, 2)
			a.send(t, n.RaftAddress(2), "lost for now")
			b.silent(t)
			b.send(t, n.RaftAddress(1), "gets through")
			a.expect(t, "heard gets through")
			b.silent(t) // the echo does not
			exchange(a, 3, c, "elsewhere")
			n.Heal(t)
			for range 2 { // in any order
				select {
				case <-b.said:
				case <-time.After(10 * time.Second):
					t.Fatal("what was cut does not arrive after the heal")
				}
			}
			a.expect(t, "echo lost for now")

			n.Isolate(t, 3)
			a.send(t, n.RaftAddress(3), "alone")
			c.silent(t)
			exchange(a, 2, b, "the others")
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			conn, err := n.Dial(ctx, n.Host(3)+":7441")
			if err != nil {
				t.Fatalf("a client does not reach a node that is cut from the others: %v", err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintln(conn, "client"); err != nil {
				t.Fatal(err)
			}
			c.expect(t, "heard client")
			n.Cut(t, 1, 2)
			n.Heal(t)
			c.expect(t, "heard alone")
			a.expect(t, "echo alone")
			exchange(b, 1, a, "again")
		})
	}
}
