package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core/digest"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// results are what a run measured, and the JSON that it writes.
type results struct {
	Machine string   `json:"machine"`
	Turns   int      `json:"turns"`
	Cases   []result `json:"cases"`
	Hash    *hashing `json:"hash,omitempty"`
}

// result is one job on every contestant that can do it.
type result struct {
	job
	Entries map[string]entry `json:"entries"`
}

// entry is one contestant's. The ratios are medians over the turns: its time by
// ours, and our processor time by its.
type entry struct {
	Median   float64 `json:"median_s"`
	CPU      float64 `json:"cpu_s_per_gb"` // of one process, by 10^9 bytes of its buffers
	Ratio    float64 `json:"ratio,omitempty"`
	CPURatio float64 `json:"cpu_ratio,omitempty"`
	Root     float64 `json:"root_s,omitempty"` // median at member 0, of other collectives
}

// hashing is the hash of shared state, in 10^9 bytes per second.
type hashing struct {
	Bytes int     `json:"bytes"`
	Ours  float64 `json:"gopccl_gb_per_s"`
	PCCL  float64 `json:"pccl_gb_per_s,omitempty"`
	Read  float64 `json:"read_gb_per_s"`
	// Medians of ratios in the same turn.
	ByPCCL float64 `json:"gopccl_by_pccl,omitempty"`
	ByRead float64 `json:"gopccl_by_read"`
}

// line is a short account of a result.
func (r result) line(all []contestant) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-38v", r.job)
	for _, c := range all {
		if e, ok := r.Entries[c.name]; ok {
			fmt.Fprintf(&b, "  %s %s", c.name, seconds(e.Median))
			if e.Ratio > 0 {
				fmt.Fprintf(&b, " (x%.2f", e.Ratio)
				fmt.Fprintf(&b, ", cpu %.2f)", e.CPURatio)
			} else {
				fmt.Fprintf(&b, " (%.2f s/GB)", e.CPU)
			}
		}
	}
	return b.String()
}

func (r results) find(j job) (result, bool) {
	for _, c := range r.Cases {
		if c.job == j {
			return c, true
		}
	}
	return result{}, false
}

func readResults(file string) (r results, err error) {
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

// onto adds r to older results, which stay where r has none.
func (r results) onto(old results) results {
	cases := slices.Clone(old.Cases)
	for _, c := range r.Cases {
		if i := slices.IndexFunc(cases, func(o result) bool { return o.job == c.job }); i >= 0 {
			cases[i] = c
		} else {
			cases = append(cases, c)
		}
	}
	slices.SortStableFunc(cases, func(a, b result) int {
		return cmp.Or(cmp.Compare(min(len(a.Pattern), 1), min(len(b.Pattern), 1)), cmp.Compare(a.World, b.World))
	})
	r.Cases = cases
	if r.Hash == nil {
		r.Hash = old.Hash
	}
	return r
}

// write writes the files that the options name.
func (r results) write(o options) error {
	if o.json != "" {
		b, err := json.MarshalIndent(r, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.markdown != "" {
		old, err := os.ReadFile(o.markdown)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		text := "# Benchmarks\n\n" + marked(r.markdown()) + "\n"
		if len(old) > 0 {
			if text, err = between(string(old), r.markdown()); err != nil {
				return fmt.Errorf("%s: %w", o.markdown, err)
			}
		}
		if err := os.WriteFile(o.markdown, []byte(text), 0o644); err != nil {
			return err
		}
	}
	if o.svg != "" {
		if err := os.WriteFile(o.svg, []byte(r.svg()), 0o644); err != nil {
			return err
		}
	}
	if o.readme != "" {
		old, err := os.ReadFile(o.readme)
		if err != nil {
			return err
		}
		text, err := between(string(old), r.short())
		if err != nil {
			return fmt.Errorf("%s: %w", o.readme, err)
		}
		return os.WriteFile(o.readme, []byte(text), 0o644)
	}
	return nil
}

// measureHash compares our hash of shared state on all cores with that of the
// original, where it is, and with reading the same bytes.
func measureHash(ctx context.Context) (*hashing, error) {
	const size, turns = 1 << 30, 3
	h := &hashing{Bytes: size}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 2654435761 >> 24)
	}
	var theirs *pccl.Process
	if dir, ok := pccl.Find(); ok {
		d, err := pccl.Open(dir)
		if err != nil {
			return nil, err
		}
		if theirs, err = pccl.Start("original", d.Command(), runLimit); err != nil {
			return nil, err
		}
		defer theirs.Close()
	}
	var ours, original, read []float64
	for k := range turns + 1 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		start := time.Now()
		if _, err := digest.SimpleHashParallel(ctx, data, nil, 0); err != nil {
			return nil, err
		}
		t := time.Since(start).Seconds()
		start = time.Now()
		readAll(data)
		u := time.Since(start).Seconds()
		if k == 0 {
			continue // it warmed up
		}
		ours, read = append(ours, t), append(read, u)
		if theirs == nil {
			continue
		}
		times, err := theirs.Hash(size, 1)
		if err != nil {
			return nil, err
		}
		original = append(original, times[0].Seconds())
	}
	h.Ours, h.Read = size/1e9/median(ours), size/1e9/median(read)
	h.ByRead = ratio(read, ours)
	if theirs != nil {
		h.PCCL, h.ByPCCL = size/1e9/median(original), ratio(original, ours)
	}
	return h, nil
}

// readAll reads every word of data on all cores.
func readAll(data []byte) {
	words := dtype.View[uint64](data)
	n := runtime.GOMAXPROCS(0)
	sums := make(chan uint64, n)
	for k := range n {
		part := words[len(words)*k/n : len(words)*(k+1)/n]
		go func() { sums <- readWords(part) }()
	}
	for range n {
		<-sums
	}
}

func readWords(words []uint64) uint64 {
	var a, b, c, d uint64
	for len(words) >= 8 {
		w := (*[8]uint64)(words)
		a, b, c, d = a+w[0]+w[4], b+w[1]+w[5], c+w[2]+w[6], d+w[3]+w[7]
		words = words[8:]
	}
	for _, w := range words {
		a += w
	}
	return a + b + c + d
}

func median(times []float64) float64 {
	s := slices.Sorted(slices.Values(times))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// ratio is the median of a by b, turn by turn.
func ratio(a, b []float64) float64 {
	var r []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			r = append(r, a[i]/b[i])
		}
	}
	return median(r)
}

func seconds(s float64) string {
	if s < 1e-3 {
		return fmt.Sprintf("%.0f µs", s*1e6)
	}
	if s < 0.1 {
		return fmt.Sprintf("%.2f ms", s*1e3)
	}
	return fmt.Sprintf("%.0f ms", s*1e3)
}

// loopback is the name of the loopback interface.
func loopback() string {
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
	}
	return "lo"
}

// moduleRoot is the directory of this repository.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
