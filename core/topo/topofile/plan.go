package topofile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/durable"
)

// PlanVersion is the version of plans that is written and read.
const PlanVersion = 1

// planFormat tells a plan from other JSON files.
const planFormat = "gopccl ring"

// plan is a ring on disk.
type plan struct {
	Format  string   `json:"format"`
	Version int      `json:"version"`
	Name    string   `json:"name,omitempty"` // of the matrix that it was made for
	Ring    []string `json:"ring"`           // names of the peers, each one sends to the next
}

// WritePlan writes ring, a permutation of the peers of f, as a plan: one JSON
// object with format, version and the names of the peers in the order of the
// ring.
func (f *File) WritePlan(out io.Writer, ring []int) error {
	p := plan{Format: planFormat, Version: PlanVersion, Name: f.Name, Ring: make([]string, 0, len(ring))}
	seen := make([]bool, len(f.Peers))
	for _, i := range ring {
		if i < 0 || i >= len(f.Peers) || seen[i] {
			return errs.New(errs.InvalidArgument, "write plan", fmt.Errorf("ring %v of %d peers", ring, len(f.Peers)))
		}
		seen[i] = true
		p.Ring = append(p.Ring, f.Peers[i])
	}
	if len(ring) != len(f.Peers) {
		return errs.New(errs.InvalidArgument, "write plan", fmt.Errorf("a ring of %d of %d peers", len(ring), len(f.Peers)))
	}
	return json.NewEncoder(out).Encode(p)
}

// ReadPlan reads a plan for the peers of f, whatever the order in which f has
// them, and returns the ring as their indices. Errors are errs.CorruptFile: no
// plan, another version, or other peers.
func (f *File) ReadPlan(in io.Reader) ([]int, error) {
	bad := func(err error) ([]int, error) { return nil, errs.New(errs.CorruptFile, "read plan", err) }
	data, err := io.ReadAll(io.LimitReader(in, MaxBytes+1))
	if err != nil {
		return bad(err)
	}
	if len(data) > MaxBytes {
		return bad(fmt.Errorf("larger than %d MiB", MaxBytes>>20))
	}
	var p plan
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&p); err != nil {
		return bad(cut(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad(fmt.Errorf("unexpected data after the plan at byte %d", d.InputOffset()))
	}
	switch {
	case p.Format != planFormat:
		return bad(fmt.Errorf("format %q; want %q", p.Format, planFormat))
	case p.Version != PlanVersion:
		return bad(fmt.Errorf("version %d; this program reads version %d", p.Version, PlanVersion))
	case len(p.Ring) != len(f.Peers):
		return bad(fmt.Errorf("a ring of %d peers, but %s has %d", len(p.Ring), f.Name, len(f.Peers)))
	}
	at := make(map[string]int, len(f.Peers))
	for i, name := range f.Peers {
		at[name] = i
	}
	ring := make([]int, 0, len(p.Ring))
	for _, name := range p.Ring {
		i, ok := at[name]
		if !ok {
			return bad(fmt.Errorf("%q is not a peer of %s, or is in the ring twice", name, f.Name))
		}
		delete(at, name)
		ring = append(ring, i)
	}
	return ring, nil
}

// OpenPlan is ReadPlan of the file of that path.
func (f *File) OpenPlan(path string) ([]int, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "read plan", err)
	}
	defer in.Close()
	ring, err := f.ReadPlan(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return ring, nil
}

// SavePlan is WritePlan to the file of that path, which is replaced as a whole.
func (f *File) SavePlan(path string, ring []int) error {
	var b bytes.Buffer
	if err := f.WritePlan(&b, ring); err != nil {
		return err
	}
	if err := durable.Replace(path, b.Bytes(), 0o644); err != nil {
		return errs.New(errs.InvalidArgument, "save plan", err)
	}
	return nil
}
