package topofile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

func parseCSV(text []byte) (*File, error) {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	r := csv.NewReader(bytes.NewReader(text))
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	first, _, _ := bytes.Cut(text, []byte("\n"))
	for _, c := range []rune{';', '\t'} {
		if bytes.ContainsRune(first, c) {
			r.Comma = c
			break
		}
	}
	records, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, errors.New("the file is empty")
	}
	head := records[0]
	if len(head) == 3 && strings.EqualFold(head[0], "from") && strings.EqualFold(head[1], "to") {
		if !strings.EqualFold(strings.TrimSpace(head[2]), "mbps") {
			return nil, fmt.Errorf("line 1: the third column is %q; want mbps", head[2])
		}
		return parseLinks(records[1:])
	}
	f := &File{}
	var columns []string
	if named(head) {
		columns, records = head, records[1:]
		if len(columns) == len(records)+1 {
			columns = columns[1:] // above the names of the rows
		}
	}
	rows := make([][]float64, len(records))
	for i, cells := range records {
		if len(cells) == len(records)+1 {
			name := strings.TrimSpace(cells[0])
			f.Peers = append(f.Peers, name)
			if columns != nil && (i >= len(columns) || strings.TrimSpace(columns[i]) != name) {
				return nil, fmt.Errorf("row %d is called %q, its column is not", i+1, name)
			}
			cells = cells[1:]
		}
		for j, cell := range cells {
			v, err := rate(cell)
			if err != nil && i != j {
				return nil, fmt.Errorf("row %d, column %d: %w", i+1, j+1, err)
			}
			rows[i] = append(rows[i], v)
		}
	}
	if f.Matrix, err = square(rows); err != nil {
		return nil, err
	}
	if f.Peers == nil {
		for _, name := range columns {
			f.Peers = append(f.Peers, strings.TrimSpace(name))
		}
	}
	return f, nil
}

// named reports whether a line holds names: a cell that is neither empty nor a
// rate.
func named(cells []string) bool {
	for _, c := range cells {
		if _, err := strconv.ParseFloat(strings.TrimSpace(c), 64); err != nil && !empty(c) {
			return true
		}
	}
	return false
}

func empty(cell string) bool {
	cell = strings.TrimSpace(cell)
	return cell == "" || cell == "-" || cell == "null"
}

// rate reads a cell; NaN if there is no link.
func rate(cell string) (float64, error) {
	if empty(cell) {
		return math.NaN(), nil
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(cell), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return math.NaN(), fmt.Errorf("%q is not a rate in Mbit/s", cell)
	}
	return v, nil
}

// parseLinks reads one link a line; peers are numbered as they appear.
func parseLinks(records [][]string) (*File, error) {
	f := &File{}
	index := map[string]int{}
	number := func(name string) (int, error) {
		name = strings.TrimSpace(name)
		if name == "" {
			return 0, errors.New("a peer without a name")
		}
		i, ok := index[name]
		if !ok {
			i = len(index)
			index[name] = i
			f.Peers = append(f.Peers, name)
		}
		return i, nil
	}
	type link struct{ from, to int }
	seen := map[link]bool{}
	rates := map[link]float64{}
	for k, r := range records {
		if len(r) != 3 {
			return nil, fmt.Errorf("link %d has %d cells; want from, to, mbps", k+1, len(r))
		}
		from, err := number(r[0])
		if err != nil {
			return nil, fmt.Errorf("link %d: %w", k+1, err)
		}
		to, err := number(r[1])
		if err != nil {
			return nil, fmt.Errorf("link %d: %w", k+1, err)
		}
		v, err := rate(r[2])
		if err != nil {
			return nil, fmt.Errorf("link %d: %w", k+1, err)
		}
		if seen[link{from, to}] {
			return nil, fmt.Errorf("link %d: %s to %s appears twice", k+1, r[0], r[1])
		}
		seen[link{from, to}] = true
		rates[link{from, to}] = v
		if n := len(index); n > MaxPeers {
			return nil, fmt.Errorf("link %d: more than %d peers", k+1, MaxPeers)
		}
	}
	// A ring needs a link from everybody: a file with fewer is not worth the
	// square of its peers.
	if len(records) < len(index) {
		return nil, fmt.Errorf("%d links for %d peers", len(records), len(index))
	}
	rows := make([][]float64, len(index))
	for i := range rows {
		rows[i] = make([]float64, len(index))
		for j := range rows[i] {
			rows[i][j] = math.NaN()
			if v, ok := rates[link{i, j}]; ok {
				rows[i][j] = v
			}
		}
	}
	var err error
	f.Matrix, err = square(rows)
	return f, err
}
