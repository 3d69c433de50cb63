// Package topofile reads bandwidth matrices from files: JSON, TSPLIB and CSV.
//
//   - JSON: an object with "mbps", rows of numbers in Mbit/s (null: no link),
//     and optionally "n", "name", and "peers" (objects with a "name", or names).
//   - TSPLIB: TYPE ATSP or TSP, EXPLICIT weights as FULL_MATRIX. The weights are
//     costs: a link has 1000/cost Mbit/s. Costs of 1e9 and more mean that there is no link.
//   - CSV (comma, semicolon or tab): a square matrix in Mbit/s, with or without
//     a first line and a first column of names; or lines of "from,to,mbps"
//     below just that heading. Empty, "-" and "null" cells mean that there is no link.
//
// A rate of zero means that there is no link. The diagonal is ignored. Negative, infinite and
// absurd values, NaN, ragged and half matrices, and names that appear twice
// are errors.
package topofile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
)

// Limits of what is read. Memory grows with what a file holds, not with what
// it announces.
const (
	MaxPeers = 4096
	MaxBytes = 1 << 29
	// MaxMbps is the largest rate that is believed: a petabit in a second.
	MaxMbps = 1e9
)

// File is a matrix with the names of its peers.
type File struct {
	Name   string
	Peers  []string // their number if the file has no names
	Matrix topo.Matrix
	// Costs: the file holds costs, not Mbit/s; the matrix has 1000/cost.
	Costs bool
}

// Bottleneck converts a rate in Mbit/s, such as Solution.Bottleneck, to the
// units of the file: itself, or the cost of that link.
func (f *File) Bottleneck(mbps float64) float64 {
	if f.Costs && mbps > 0 {
		cost := 1000 / mbps
		if r := math.Round(cost); math.Abs(cost-r) <= topo.Tolerance*math.Max(1, r) {
			return r
		}
		return cost
	}
	return mbps
}

// Sum converts a sum of 1000/Mbps, such as Solution.Sum, to the units of the
// file. Sums of integer costs are integers again.
func (f *File) Sum(sum float64) float64 {
	if r := math.Round(sum); f.Costs && math.Abs(sum-r) <= topo.Tolerance*math.Max(1, r) {
		return r
	}
	return sum
}

// Open reads the file of that path; one that ends in .gz is unpacked.
func Open(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, errs.New(errs.InvalidArgument, "read topology", err)
	}
	defer in.Close()
	name := filepath.Base(path)
	if filepath.Ext(name) != ".gz" {
		return Read(in, name)
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "read topology", fmt.Errorf("%s: %w", name, err))
	}
	return Read(z, strings.TrimSuffix(name, ".gz"))
}

// Read reads a matrix. The format follows from the extension of name (.json,
// .atsp, .tsp, .csv) or, if that is another, from the content. Errors are
// errs.CorruptFile and name the place.
func Read(in io.Reader, name string) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(in, MaxBytes+1))
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "read topology", fmt.Errorf("%s: %w", name, err))
	}
	f, err := parse(data, strings.ToLower(filepath.Ext(name)))
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return nil, errs.New(errs.CorruptFile, "read topology", fmt.Errorf("%s: %w", name, err))
	}
	if f.Name == "" {
		f.Name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	return f, nil
}

func parse(data []byte, ext string) (*File, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("larger than %d MiB", MaxBytes>>20)
	}
	text := bytes.TrimSpace(data)
	switch {
	case len(text) == 0:
		return nil, errors.New("the file is empty")
	case ext == ".json" || ext != ".csv" && ext != ".atsp" && ext != ".tsp" && (text[0] == '{' || text[0] == '['):
		return parseJSON(text)
	case ext == ".atsp" || ext == ".tsp" || ext != ".csv" && bytes.Contains(text, []byte("EDGE_WEIGHT")):
		return parseTSPLIB(text)
	}
	return parseCSV(text)
}

// square makes a matrix of rows whose missing links are NaN.
func square(rows [][]float64) (topo.Matrix, error) {
	n := len(rows)
	if n > MaxPeers {
		return topo.Matrix{}, fmt.Errorf("%d peers, at most %d are supported", n, MaxPeers)
	}
	for i, row := range rows {
		if len(row) != n {
			return topo.Matrix{}, fmt.Errorf("row %d has %d values, but there are %d rows: the matrix must be square", i+1, len(row), n)
		}
	}
	m := topo.NewMatrix(n)
	for i, row := range rows {
		for j, v := range row {
			if i == j || math.IsNaN(v) {
				continue
			}
			if v < 0 || v > MaxMbps {
				return topo.Matrix{}, fmt.Errorf("row %d, column %d: %v Mbit/s; want 0 (no link) to %g", i+1, j+1, v, MaxMbps)
			}
			m.Set(i, j, v)
		}
	}
	return m, nil
}

// check refuses matrices that are half or have ambiguous names.
func (f *File) check() error {
	n := f.Matrix.N
	if n == 0 {
		return errors.New("no peers")
	}
	if f.Peers == nil {
		for i := range n {
			f.Peers = append(f.Peers, fmt.Sprint(i))
		}
	}
	if len(f.Peers) != n {
		return fmt.Errorf("%d names for %d peers", len(f.Peers), n)
	}
	seen := map[string]int{}
	for i, name := range f.Peers {
		if k, dup := seen[name]; dup {
			return fmt.Errorf("peers %d and %d are both called %q", k+1, i+1, name)
		}
		seen[name] = i
	}
	upper, lower := 0, 0
	for i := range n {
		for j := range n {
			if _, ok := f.Matrix.At(i, j); ok {
				if i < j {
					upper++
				} else {
					lower++
				}
			}
		}
	}
	if upper+lower > 0 && (upper == 0 || lower == 0) {
		return errors.New("the matrix is one-sided: all links lead to one side of the diagonal; both directions of a pair must be given")
	}
	return nil
}
