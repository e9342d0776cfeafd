package operations

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/test/process"
)

// TestEveryBlockIsRun compares the page's blocks with those that the tests of this package give:
// a new one needs a test.
func TestEveryBlockIsRun(t *testing.T) {
	want := map[string]int{
		"A first cluster": 2, threeMachines: 2, "Adding a node": 2, "Replacing a node": 2, "Rolling upgrade": 3,
		"Losing a majority": 2, "Disk full": 2, "Restoring a backup": 4, "A damaged node": 2,
	}
	for title, blocks := range commands(t) {
		if len(blocks) != want[title] {
			t.Errorf("%q has %d blocks of commands, and the tests give %d", title, len(blocks), want[title])
		}
		delete(want, title)
	}
	for title := range want {
		t.Errorf("there is no section %q with commands any more", title)
	}
}

func TestAddReplaceAndRemoveNodes(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5")
	m.form()
	m.append(100)
	m.give(threeMachines, 0, "10.0.0.4", "NODE=n1 ADDRESS=10.0.0.1", "NODE=n4 ADDRESS=10.0.0.4")
	m.give("Adding a node", 0, "10.0.0.1")
	m.healthy("n1", "n2", "n3", "n4")
	m.holds("10.0.0.4", "100")
	m.give("Adding a node", 1, "10.0.0.1")
	m.healthy("n1", "n2", "n3")
	m.on("10.0.0.4", `while kill -0 "$(cat "$MACHINE/pid")" 2>/dev/null; do sleep 0.05; done`) // ends by itself

	m.kill("10.0.0.3")
	m.append(200)
	m.give("Replacing a node", 0, "10.0.0.5")
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
		m.give("Replacing a node", 1, address)
		if file := m.on(address, "cat /etc/tidemark/tidemark.yaml"); !strings.Contains(file, "n3=10.0.0.5:7441\n") {
			t.Errorf("on %s the peers are not corrected:\n%s", address, file)
		}
	}
	leader, followers := m.healthy("n1", "n2", "n3")
	if !slices.Contains(append(followers, leader), "10.0.0.5") {
		t.Errorf("the nodes are at %s and %v, expected 10.0.0.5 among them", leader, followers)
	}
	m.holds("10.0.0.5", "200")
}

func TestRollingUpgrade(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	m.form()
	m.append(100)
	program, err := os.ReadFile(process.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	m.world.write(t, "tidemark_2_amd64.deb", string(program)+"version 2", 0o755) // what follows the program is ignored

	_, followers := m.healthy("n1", "n2", "n3")
	m.give("Rolling upgrade", 0, "10.0.0.1")
	for i, address := range followers {
		out := m.give("Rolling upgrade", 1, address, "10.0.0.2", address)
		if !strings.Contains(out, "HEALTHY") {
			t.Errorf("the commands on %s do not show the cluster:\n%s", address, out)
		}
		m.append(200 + 100*i)
		m.healthy("n1", "n2", "n3")
	}
	last, _ := m.healthy("n1", "n2", "n3")
	m.give("Rolling upgrade", 2, "10.0.0.1")
	if leader, _ := m.healthy("n1", "n2", "n3"); leader == last {
		t.Fatalf("%s still leads after the transfer", leader)
	}
	m.give("Rolling upgrade", 1, last, "10.0.0.2", last)
	m.append(400)
	m.healthy("n1", "n2", "n3")
	for _, address := range append(followers, last) {
		if m.on(address, `cmp "$MACHINE/../tidemark_2_amd64.deb" "/proc/$(cat "$MACHINE/pid")/exe"; echo same`) != "same\n" {
			t.Errorf("%s does not run the new version", address)
		}
		m.holds(address, "400")
	}
}

func TestLosingAMajority(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	m.form()
	m.append(100)
	m.kill("10.0.0.2")
	m.kill("10.0.0.3")
	m.give("Losing a majority", 0, "10.0.0.2")
	m.append(200)

	m.holds("10.0.0.1", "200")
	m.kill("10.0.0.2")
	m.on("10.0.0.2", "rm -r /var/lib/tidemark")
	m.on("10.0.0.3", "rm -r /var/lib/tidemark")
	out, err := m.tryOn("10.0.0.1", "tidemark backup --server 10.0.0.1:7440 never.tidemark --timeout 1s")
	if err == nil {
		t.Fatalf("a backup without a majority and without --local is made:\n%s", out)
	}
	m.give("Losing a majority", 1, "10.0.0.1")
	for _, address := range []string{"10.0.0.2", "10.0.0.3"} {
		m.on(address, "mkdir /var/lib/tidemark") // new disks
	}
	m.restored("200")
}

// restored does what the page says about restoring, and expects so many events.
func (m *machines) restored(count string) {
	m.t.Helper()
	const section = "Restoring a backup"
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		m.give(section, 0, address)
	}
	m.give(section, 1, "10.0.0.1")
	for _, address := range []string{"10.0.0.2", "10.0.0.3"} {
		m.give(section, 2, address)
	}
	m.give(section, 3, "10.0.0.1")
	m.healthy("n1", "n2", "n3")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		m.holds(address, count)
	}
	m.append(300)
	m.holds("10.0.0.3", "300")
}

func TestRestoringABackup(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	m.form()
	m.append(100)
	m.on("10.0.0.2", "tidemark backup nightly.tidemark")
	m.append(200)
	m.restored("100")
}

func TestDiskFull(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		m.run(t, fmt.Sprintf("mount -t tmpfs -o size=400m disk %s/lib", filepath.Join(m.dir, address)))
	}
	m.form()
	m.append(100)
	full, _ := m.healthy("n1", "n2", "n3")
	m.on(full, `free=$(df --output=avail -B1 /var/lib/tidemark | tail -1); fallocate -l $((free - (200 << 20))) /var/lib/ballast`)
	const append = `tidemark append acme/orders/1 --client-id other --enforce=false --seq 1 --event-type Tried --data '{}' --server `
	refused := func(out string) bool { return strings.Contains(out, "2018") }
	m.until(t, "a write that is refused", enterScriptFor(filepath.Join(m.dir, full), append+full+":7440 2>&1 || true"), refused)
	if out := m.give("Disk full", 0, full); !strings.Contains(out, "/var/lib/tidemark/tail") {
		t.Errorf("the commands do not show what takes the room:\n%s", out)
	}
	m.give("Disk full", 1, "10.0.0.1")
	// The disk is as full as before; a leader with room takes it.
	m.on("10.0.0.1", append+"$TIDEMARK_SERVER")
	m.on(full, "rm /var/lib/ballast")
	m.healthy("n1", "n2", "n3")
	m.append(200)
}

func TestADamagedNode(t *testing.T) {
	m := newMachines(t, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	m.form()
	m.append(300)
	m.holds("10.0.0.3", "300")
	m.kill("10.0.0.3")
	// A byte of a record in the middle of the log.
	m.on("10.0.0.3", `for segment in $(find /var/lib/tidemark/tail -type f -size +8k); do
	printf 'damage, not a record' | dd of="$segment" bs=1 seek=5000 conv=notrunc status=none
done`)
	out, err := m.tryOn("10.0.0.3", "timeout 60 tidemark serve --config /etc/tidemark/tidemark.yaml")
	if err == nil || !strings.Contains(err.Error(), "exit status 71") || !strings.Contains(out, "/var/lib/tidemark/tail/") {
		t.Fatalf("serve: %v, expected exit code 71 and the file\n%s", err, out)
	}
	out, err = m.tryOn("10.0.0.3", m.block("A damaged node", 0))
	if err == nil || !strings.Contains(err.Error(), "exit status 71") || !strings.Contains(out, "DAMAGE") {
		t.Fatalf("verify: %v, expected exit code 71\n%s", err, out)
	}
	m.append(400)
	m.give("A damaged node", 1, "10.0.0.3")
	m.healthy("n1", "n2", "n3")
	m.holds("10.0.0.3", "400")
}
