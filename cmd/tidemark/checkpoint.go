package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// checkpoint is what a checkpoint file holds.
type checkpoint struct {
	Timeline     string `json:"timeline"`
	Shard        uint32 `json:"shard"`
	NextPosition uint64 `json:"next_position,string"`
}

// loadCheckpoint reads a checkpoint file; nil if there is none.
func loadCheckpoint(file string) (*checkpoint, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c checkpoint
	if err := json.Unmarshal(text, &c); err != nil || c.Timeline == "" || c.NextPosition == 0 || c.Shard != 0 {
		return nil, fmt.Errorf("%s: expected a checkpoint of \"tidemark tail\" (timeline, shard 0, next_position), found something else; name another file, or remove it to begin anew", file)
	}
	return &c, nil
}

// checkpointer stores how far a tail is.
type checkpointer struct {
	file        string // "" = nowhere
	now, stored checkpoint
	at          time.Time // when it was stored last
}

// reached notes that everything below next has been printed; timeline may be empty if it was
// said before.
func (c *checkpointer) reached(timeline string, next uint64, now time.Time) error {
	if timeline != "" {
		c.now.Timeline = timeline
	}
	c.now.NextPosition = next
	if now.Sub(c.at) < checkpointEvery {
		return nil
	}
	c.at = now
	return c.save()
}

// save stores what was reached, unless it is stored already. The file is replaced at once:
// whatever ends the process leaves the old content or the new.
func (c *checkpointer) save() error {
	if c.file == "" || c.now == c.stored || c.now.Timeline == "" || c.now.NextPosition == 0 {
		return nil
	}
	text, err := json.Marshal(&c.now)
	if err != nil {
		return err
	}
	dir := filepath.Dir(c.file)
	tmp, err := os.CreateTemp(dir, filepath.Base(c.file)+".*.new")
	if err != nil {
		return fmt.Errorf("store the checkpoint: %w", err)
	}
	_, err = tmp.Write(append(text, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), c.file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("store the checkpoint: %w", err), os.Remove(tmp.Name()))
	}
	if d, err := os.Open(dir); err == nil { // the name must survive a power loss, too
		err = errors.Join(d.Sync(), d.Close())
		if err != nil {
			return fmt.Errorf("store the checkpoint: %w", err)
		}
	}
	c.stored = c.now
	return nil
}
