package tail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// The state file holds what the segment files cannot say of themselves. It has two slots,
// each in a disk page of its own:
//
//	slot = magic u32 | CRC-32C of the rest u32 | first u64 | synced u64 | keep u64 | boot [16]
//
// Slot 0 is written after every flush and is itself not flushed: it outlives a process that
// is killed, and after a power loss it is merely old. Slot 1 is written, together with slot
// 0 and flushed, at Open, at Close and before anything is deleted, so that a state whose
// synced is higher than what the log still holds can never be read back.
const (
	stateName  = "state"
	stateMagic = 0x544d5331 // "TMS1"
	slotSize   = 48
	slotStride = 4096
)

// state is one slot's content.
type state struct {
	// first is the lowest index that is not deleted; segment files wholly below it are
	// left over from a deletion.
	first uint64
	// synced is an index up to which every record was flushed. Records above it may or may
	// not have been, unless exact.
	synced uint64
	// keep is 0, or an index above which records are being deleted: whatever is there of
	// them is to go.
	keep uint64
	// boot identifies the boot of the machine in which the slot was written; zero is unknown.
	boot [16]byte
	// exact is not stored: slot 0 was whole when it was read.
	exact bool
}

func (s state) append(dst []byte) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, stateMagic)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint64(dst, s.first)
	dst = binary.BigEndian.AppendUint64(dst, s.synced)
	dst = binary.BigEndian.AppendUint64(dst, s.keep)
	dst = append(dst, s.boot[:]...)
	binary.BigEndian.PutUint32(dst[at+4:], checksum(dst[at+8:at+slotSize]))
	return dst
}

func parseSlot(b []byte) (state, bool) {
	if len(b) < slotSize || binary.BigEndian.Uint32(b) != stateMagic ||
		binary.BigEndian.Uint32(b[4:]) != checksum(b[8:slotSize]) {
		return state{}, false
	}
	s := state{first: binary.BigEndian.Uint64(b[8:]), synced: binary.BigEndian.Uint64(b[16:]), keep: binary.BigEndian.Uint64(b[24:])}
	copy(s.boot[:], b[32:slotSize])
	return s, true
}

// readState reads the better slot of the state file in dir.
func readState(dir string) (state, error) {
	path := filepath.Join(dir, stateName)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return state{}, &DamageError{File: path, Reason: "expected the log's state file, found none", Advice: adviceRestore}
	}
	if err != nil {
		return state{}, fmt.Errorf("open the log's state: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, slotStride+slotSize))
	if err = errors.Join(err, f.Close()); err != nil {
		return state{}, fmt.Errorf("read the log's state: %w", err)
	}
	if s, ok := parseSlot(b); ok {
		s.exact = true
		return s, nil
	}
	if len(b) > slotStride {
		if s, ok := parseSlot(b[slotStride:]); ok {
			return s, nil
		}
	}
	return state{}, &DamageError{File: path, Reason: "expected one whole slot of two, found none", Advice: adviceRestore}
}

// writeSynced records in slot 0, without a flush, that all up to s.synced is durable.
func writeSynced(f *os.File, s state) error {
	var slot [slotSize]byte
	if _, err := f.WriteAt(s.append(slot[:0]), 0); err != nil {
		return fmt.Errorf("write the log's state: %w", err)
	}
	return nil
}

// writeState writes both slots and flushes them.
func (o *ops) writeState(f *os.File, s state) error {
	b := s.append(nil)
	for _, at := range []int64{slotStride, 0} {
		if _, err := f.WriteAt(b, at); err != nil {
			return fmt.Errorf("write the log's state: %w", err)
		}
	}
	if err := o.flush(f); err != nil {
		return fmt.Errorf("flush the log's state: %w", err)
	}
	return nil
}
