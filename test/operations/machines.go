package operations

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/test/process"
)

// machines are those of the page, in a world: each with its own /etc, /var/lib and programs.
type machines struct {
	*world
	t      *testing.T
	blocks map[string][]string
}

// enterScript begins every script on a machine, whose directory is $1.
const enterScript = `mount --bind "$1/etc" /etc
mount --bind "$1/lib" /var/lib
export PATH="$1/bin:$PATH" MACHINE="$1"
export TIDEMARK_SERVER=10.0.0.1:7440,10.0.0.2:7440,10.0.0.3:7440,10.0.0.5:7440
`

// systemctlScript does what systemd does with the unit, as far as the page needs it.
const systemctlScript = `#!/bin/bash
set -eu
running() { [ -s "$MACHINE/pid" ] && kill -0 "$(cat "$MACHINE/pid")" 2>/dev/null; }
stop() {
	running || return 0
	kill "$(cat "$MACHINE/pid")"
	while running; do sleep 0.05; done
}
start() {
	running && return
	[ -d /var/lib/tidemark ] || install -d -o tidemark -g tidemark -m 0700 /var/lib/tidemark # StateDirectory
	unset TIDEMARK_SERVER
	setsid setpriv --reuid tidemark --regid tidemark --clear-groups \
		tidemark serve --config /etc/tidemark/tidemark.yaml </dev/null >>"$MACHINE/log" 2>&1 &
	echo $! >"$MACHINE/pid"
}
case "$*" in
"start tidemark" | "enable --now tidemark") start ;;
"stop tidemark") stop ;;
"restart tidemark") stop; start ;;
*) echo "systemctl $*: expected a command that this page's commands give" >&2; exit 1 ;;
esac
`

// aptGetScript installs the new version of the program, which is beside the machines.
const aptGetScript = `#!/bin/bash
set -eu
[ "$*" = "install ./tidemark_2_amd64.deb" ]
cp --remove-destination "$MACHINE/../tidemark_2_amd64.deb" "$MACHINE/bin/tidemark"
`

// newMachines installs what the package brings on the machines at some addresses.
func newMachines(t *testing.T, addresses ...string) *machines {
	t.Helper()
	bin := t.TempDir()
	m := &machines{world: newWorld(t, bin, addresses...), t: t, blocks: commands(t)}
	// The node runs as a user of its own, which must get at its program.
	for _, dir := range []string{filepath.Dir(m.dir), m.dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range addresses {
		m.write(t, a+"/bin/systemctl", systemctlScript, 0o755)
		m.write(t, a+"/bin/apt-get", aptGetScript, 0o755)
		const script = `mkdir "$1/etc" "$1/lib"
cp -r /etc/passwd /etc/group /etc/shadow /etc/nsswitch.conf /etc/pam.d /etc/security "$1/etc"
mkdir "$1/etc/tidemark"
grep -q ^tidemark: "$1/etc/passwd" || echo 'tidemark:x:64311:64311::/var/lib/tidemark:/bin/sh' >>"$1/etc/passwd"
grep -q ^tidemark: "$1/etc/group" || echo 'tidemark:x:64311:' >>"$1/etc/group"
grep -q ^tidemark: "$1/etc/shadow" || echo 'tidemark:*:20000:0:99999:7:::' >>"$1/etc/shadow"
cp "$2" "$1/bin/tidemark"`
		cmd := exec.Command("bash", "-euc", script, "install", filepath.Join(m.dir, a), process.Binary(t))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Cleanup(func() {
			if t.Failed() {
				log, _ := os.ReadFile(filepath.Join(m.dir, a, "log")) // it may not have been started
				t.Logf("log of %s, from its end:\n%s", a, log[max(0, len(log)-4096):])
			}
		})
	}
	return m
}

// tryOn runs a script on a machine.
func (m *machines) tryOn(address, script string) (string, error) {
	m.t.Helper()
	return m.world.try(m.t, enterScriptFor(filepath.Join(m.dir, address), script))
}

// enterScriptFor is a script that runs another one on the machine in a directory.
func enterScriptFor(dir, script string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return "exec unshare --mount bash -euo pipefail -c " + quote(enterScript+script) + " machine " + quote(dir)
}

func (m *machines) on(address, script string) string {
	m.t.Helper()
	out, err := m.tryOn(address, script)
	if err != nil {
		m.t.Fatalf("on %s: %v\n%s", address, err, out)
	}
	return out
}

// give gives a block of the page's commands, the nth of a section (from 0), on a machine.
func (m *machines) give(section string, n int, address string, replace ...string) string {
	m.t.Helper()
	return m.on(address, m.block(section, n, replace...))
}

// block is one with some words replaced, each of which must be there.
func (m *machines) block(section string, n int, replace ...string) string {
	m.t.Helper()
	if n >= len(m.blocks[section]) {
		m.t.Fatalf("%s: %q has %d blocks of commands, expected one more than %d", page, section, len(m.blocks[section]), n)
	}
	text := m.blocks[section][n]
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			m.t.Fatalf("%s: expected %q in block %d of %q", page, replace[i], n, section)
		}
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text
}

// kill ends a machine's node with SIGKILL and waits until it is gone.
func (m *machines) kill(address string) {
	m.t.Helper()
	m.on(address, `pid=$(cat "$MACHINE/pid"); kill -9 "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done`)
}

const threeMachines = "Three machines"

// form forms a cluster of three, and waits until all are well.
func (m *machines) form() {
	m.t.Helper()
	for node, address := range map[string]string{"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"} {
		m.give(threeMachines, 0, address, "NODE=n1 ADDRESS=10.0.0.1", "NODE="+node+" ADDRESS="+address)
	}
	m.healthy("n1", "n2", "n3")
}

var statusRow = regexp.MustCompile(`(?m)^(n\d) +(\w+) +yes +([0-9.]+):7441 .* yes *$`)

// healthy waits until the page's command shows exactly these nodes, all voters and healthy, and
// returns the address of the leader and those of the others.
func (m *machines) healthy(ids ...string) (leader string, followers []string) {
	m.t.Helper()
	script := enterScriptFor(filepath.Join(m.dir, "10.0.0.1"), m.block(threeMachines, 1,
		"10.0.0.3:7440", "10.0.0.3:7440,10.0.0.5:7440"))
	m.until(m.t, "healthy nodes "+strings.Join(ids, " "), script, func(out string) bool {
		leader, followers = "", nil
		var found []string
		for _, row := range statusRow.FindAllStringSubmatch(out, -1) {
			found = append(found, row[1])
			if row[2] == "leader" {
				leader = row[3]
			} else {
				followers = append(followers, row[3])
			}
		}
		_, table, _ := strings.Cut(out, "PROBLEMS\n")
		return leader != "" && strings.Join(found, " ") == strings.Join(ids, " ") && strings.Count(table, "\n") == len(ids)
	})
	return leader, followers
}

// append appends events to an aggregate: as many as make it so many in all.
func (m *machines) append(to int) {
	m.t.Helper()
	rows := "id,what\n" + strings.Repeat("1,Ordered\n", to)
	m.world.write(m.t, "rows.csv", rows, 0o644)
	m.on("10.0.0.1", `tidemark import rows.csv --format csv --org acme --type orders --client-id test --id-column id --event-type-column what`)
}

// holds waits until a node has an aggregate of so many events.
func (m *machines) holds(address, count string) {
	m.t.Helper()
	script := enterScriptFor(filepath.Join(m.dir, "10.0.0.1"), "tidemark aggregate acme/orders/1 --consistency any --output json --server "+address+":7440")
	m.until(m.t, "all events on "+address, script, func(out string) bool {
		return strings.Contains(out, `"version":"`+count+`"`)
	})
}
